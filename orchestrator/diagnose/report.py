"""What was found in a log, for people and for programs."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.diagnose.signatures import Effect, Signature

TAIL_LINES: Final = 40
_RANK: Final = {Effect.FATAL: 0, Effect.DEGRADED: 1, Effect.NOTICE: 2, Effect.CONSEQUENCE: 3}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line that proves something; `line` counts from 1."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Match:
    """A signature that the log carries `count` times, with the first lines that prove it."""

    signature: Signature
    count: int
    evidence: tuple[Evidence, ...]

    def reworded(self, word: Callable[[str], str]) -> "Match":
        """The same, its hint in other words: its commands as the user can type them."""
        hint = word(self.signature.hint)
        return replace(self, signature=self.signature.model_copy(update={"hint": hint}))

    def order(self) -> tuple[int, int]:
        """Causes before consequences, and of each the first in the log first."""
        return _RANK[self.signature.effect], self.evidence[0].line

    def to_text(self, *, brief: bool = False) -> str:
        """The match in a few lines, the proof with its line numbers; `brief` leaves out what it means."""
        more = f" ({self.count} times)" if self.count > 1 else ""
        known = self.signature
        proof = [f"line {evidence.line}: {evidence.text}" for evidence in self.evidence]
        about = [] if brief else [f"cause: {known.cause}", f"hint: {known.hint}", f"source: {known.source}"]
        return "\n  ".join([f"{known.effect}: {known.id}{more}", *proof, *about])

    def to_dict(self) -> dict[str, object]:
        """The match as plain JSON-able data."""
        about = self.signature.model_dump(mode="json", include={"id", "effect", "cause", "hint", "source"})
        return {**about, "count": self.count, "evidence": [dataclasses.asdict(line) for line in self.evidence]}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that a log of `lines` lines says; `tail` is its end. Secrets are removed."""

    matches: tuple[Match, ...]
    lines: int
    tail: tuple[str, ...]

    @property
    def cause(self) -> Match | None:
        """The first fatal cause, None where no signature explains a failure."""
        return next((found for found in self.matches if found.signature.effect is Effect.FATAL), None)

    @property
    def degraded(self) -> tuple[str, ...]:
        """The faults of a server that serves all the same, one line each: what a smoke test fails on."""
        degraded = [found for found in self.matches if found.signature.effect is Effect.DEGRADED]
        return tuple(f"{found.signature.id}: {found.evidence[-1].text}" for found in degraded)

    def reworded(self, word: Callable[[str], str]) -> "Diagnosis":
        """The same, its hints in other words."""
        return replace(self, matches=tuple(match.reworded(word) for match in self.matches))

    def to_text(self) -> str:
        """Matches, causes first; where none explains a failure, that and the end of the log."""
        explained = self.cause is not None
        parts = [
            found.to_text(brief=explained and found.signature.effect is Effect.CONSEQUENCE) for found in self.matches
        ]
        if self.cause is None:
            known = "no known cause of a failure" if parts else "no known signature"
            parts.append("\n".join([f"{known}; the last {len(self.tail)} of {self.lines} lines:", *self.tail]))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, object]:
        """The diagnosis as plain JSON-able data; `cause` is the id of the first cause, or null."""
        return {
            "cause": self.cause.signature.id if self.cause else None,
            "matches": [match.to_dict() for match in self.matches],
            "lines": self.lines,
            "tail": list(self.tail),
        }
