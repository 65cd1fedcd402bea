"""Mismatches between a checkpoint's tensors and its config."""

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from orchestrator.core.errors import CheckpointMismatchError, Problem


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A mismatch between a checkpoint's tensors and its config."""

    message: str
    hint: str = ""
    fatal: bool = False  # does not load, or silently loads wrongly
    sglang: str = ""  # versions in which it is fatal, a PEP 440 range; empty: all

    def is_fatal_in(self, version: str) -> bool:
        """Return whether it is fatal in a version of sglang ("": in all versions)."""
        if not self.sglang:
            return self.fatal
        return self.fatal and bool(version) and SpecifierSet(self.sglang).contains(version, prereleases=True)


def require_loadable(
    mismatches: Iterable[Mismatch], message: str, *, location: str, sglang: str = "", hint: str = ""
) -> None:
    """Raise CheckpointMismatchError with every mismatch that is fatal in a version of sglang ("": in all versions)."""
    fatal = [mismatch for mismatch in mismatches if mismatch.is_fatal_in(sglang)]
    if fatal:
        problems = tuple(Problem(mismatch.message, location, mismatch.hint) for mismatch in fatal)
        raise CheckpointMismatchError(message, hint=hint, problems=problems)
