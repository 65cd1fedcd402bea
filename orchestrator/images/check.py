"""What the patches find in sources that are not (yet) an image of ours: a wheel, a directory, somebody's image."""

import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from orchestrator.core.errors import BuildError, UsageError
from orchestrator.core.shell import ProgramResult, run
from orchestrator.images.client import Docker
from orchestrator.patches import Patch, manifest

_CHECK: Final = ("check", "--manifest", "-")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One patch as the sources see it: needed, present upstream, not applicable, conflict; and why."""

    id: str
    state: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Checker:
    """The ledger with the program that reads sources for it."""

    applier: Path
    patches: Sequence[Patch]
    diffs: Mapping[str, str]

    def check_directory(self, directory: Path) -> tuple[Finding, ...]:
        """The findings for a checkout, an installed package or an unpacked wheel. Raises UsageError for no sources."""
        roots = ("--root", f"sglang={package_in(directory)}", "--root", f"aiter={directory / 'aiter' / 'aiter'}")
        return self._findings(run([sys.executable, str(self.applier), *_CHECK, *roots], stdin=self._manifest()))

    def check_wheel(self, wheel: Path) -> tuple[Finding, ...]:
        """The findings for a wheel file. Raises UsageError for a file that is none."""
        with tempfile.TemporaryDirectory(prefix="deploy-wheel-") as folder:
            _unpack(wheel, self._names(), Path(folder))
            return self.check_directory(Path(folder))

    def check_image(self, docker: Docker, image: str) -> tuple[Finding, ...]:
        """The findings inside an image, by its own Python, for the packages that Python would import.

        The applier comes along as text; nothing is mounted, and the container has no network.
        """
        options = ("--rm", "--interactive", "--network", "none", "--entrypoint", "python3", image)
        program = ("-c", self.applier.read_text(encoding="utf-8"))
        return self._findings(docker.run("run", *options, *program, *_CHECK, stdin=self._manifest()))

    def _manifest(self) -> str:
        return manifest(self.patches, self.diffs)

    def _names(self) -> frozenset[str]:
        probes = [probe for patch in self.patches for probe in (*patch.detect.needed, *patch.detect.present)]
        return frozenset(PurePosixPath(probe.file).name for probe in probes)

    def _findings(self, done: ProgramResult) -> tuple[Finding, ...]:
        if not done.ok:
            raise BuildError("the sources cannot be checked", details=done.stderr.strip())
        return tuple(
            Finding(id=found["id"], state=found["state"], evidence=tuple(found["evidence"]))
            for found in json.loads(done.stdout)
        )


def package_in(directory: Path) -> Path:
    """The package `sglang` in a directory: the directory itself, or where a wheel, a checkout or an image keeps it."""
    for place in ("", "sglang", "python/sglang", "sglang/python/sglang"):
        if (directory / place / "srt").is_dir():
            return directory / place
    raise UsageError(f"there are no sources of sglang in `{directory}`", hint="give a checkout or the package itself")


def _unpack(wheel: Path, names: frozenset[str], folder: Path) -> None:
    """Unpack the files of a wheel that have one of these names; a wheel has thousands of others."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [entry for entry in archive.namelist() if PurePosixPath(entry).name in names])
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"`{wheel}` is not a wheel: {error}") from error
