"""Staging on a far machine: its own Python fetches, what it found is verified here as if it lay here.

Files of weights are verified by their headers and sizes. So the far machine tells those, and small files whole, and
here they become a mirror: a folder of sparse files that the one reader of checkpoints reads. The receipt of its
verification is then kept over there.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from orchestrator.checkpoints import remote_fetch
from orchestrator.checkpoints.download import (
    DownloadProgress,
    disk_full_error,
    download_interrupted,
    progress_from,
    rate_window,
)
from orchestrator.checkpoints.hub import Hub, Listing, download_url, list_files
from orchestrator.checkpoints.receipt import read_receipt, receipt_path
from orchestrator.checkpoints.verify import VerifiedCheckpoint, VerifyOptions, verify_checkpoint, verify_fresh
from orchestrator.core import safe_paths
from orchestrator.core.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointModifiedError,
    CheckpointNotFoundError,
    HostError,
)
from orchestrator.core.files import replace_folder, write_cache, write_sparse
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, byte_count, display, join
from orchestrator.core.subprocesses import Program
from orchestrator.plan.plan import Model

_NO_PROGRAM: Final = 127  # a shell's exit code


def remote_program() -> list[str]:
    """The command for the remote host: the program and the module it imports, as text; nothing is installed there."""
    needed = (
        f"import sys, types\nsys.modules[{safe_paths.__name__!r}] = module = types.ModuleType({safe_paths.__name__!r})"
    )
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (safe_paths, remote_fetch)]
    return ["python3", "-I", "-c", f"{needed}\nexec({sources[0]!r}, module.__dict__)\nexec({sources[1]!r})"]


@dataclass(frozen=True, kw_only=True)
class RemoteDownload:
    """A checkpoint that is to be on a far machine; `directory` is absolute, or relative to the tool's home there."""

    host: str  # as the user named it
    directory: str
    model: Model
    options: VerifyOptions
    hub: Hub | None  # None: nothing is fetched, what is there is verified
    progress: Callable[[DownloadProgress], None]
    mirror: Path | None = None  # where the mirror is kept once the checkpoint is verified; None: nowhere

    def run(self, program: Program, read_stderr: Callable[[], str]) -> VerifiedCheckpoint:
        """Talk to the program that was started there; `complaints` is what it and ssh said besides.

        Raises WeightsError for a checkpoint that is not whole, HostError for a machine without Python, a hub that
        cannot be asked, a full disk, a download that broke off: what has arrived stays, and the next call resumes.
        """
        source, hub = self.model.checkpoint, self.hub
        listing = list_files(source.path, source.revision, hub) if hub and source.source == "hub" else None
        program.feed(json.dumps(self._request(listing, hub)) + "\n")
        with self._temporary_dir() as folder:
            mirror = Path(folder) / "checkpoint"
            mirror.mkdir()
            there = self._receive(program, mirror, listing, read_stderr)
            verified = self._verify(mirror, there, listing)
            program.feed(json.dumps(json.loads(receipt_path(mirror).read_text())) + "\n")
            program.wait()
            if self.mirror is not None:
                replace_folder(mirror, self.mirror)
        return replace(verified, directory=Path(there))

    def _temporary_dir(self) -> "TemporaryDirectory[str]":
        """Where the mirror is made: where it is kept, or else it would be copied, and its holes with it."""
        if self.mirror is None:
            return TemporaryDirectory(prefix="deploy-far-")
        self.mirror.parent.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix=".deploy-far-", dir=self.mirror.parent)

    def _request(self, listing: Listing | None, hub: Hub | None) -> dict[str, object]:
        if listing is None or hub is None:
            return {"directory": self.directory, "files": {}}
        address, headers = download_url(listing, hub)
        return {
            "directory": self.directory,
            "files": listing.contents,
            "commit": listing.commit,
            "address": address,
            "headers": headers,
        }

    def _receive(self, program: Program, mirror: Path, listing: Listing | None, complaints: Callable[[], str]) -> str:
        """Take what it tells until the end; the directory's full path there."""
        done, total, seen = 0, listing.size if listing else 0, rate_window()
        for told in _messages(program):
            if "done" in told:
                done = _number(told["done"])
                self.progress(progress_from(seen, done, total))
            elif "receipt" in told:
                write_cache(receipt_path(mirror), str(told["receipt"]))
            elif "file" in told:
                _write(mirror, told)
            elif "error" in told:
                why, full = str(told["error"]), bool(told.get("full"))
                raise download_interrupted(self._where, reason=why, full=full, done=done, total=total)
            elif isinstance(room := told.get("room"), dict):
                raise disk_full_error(self._where, missing=_number(room.get("missing")), free=_number(room.get("free")))
            elif "nothing" in told:
                message = f"there is no checkpoint of `{self.model.name}`"
                raise CheckpointNotFoundError(message, where=f"{self.host}: {told['nothing']}", hint=self._hint)
            elif "end" in told:
                return self._absolute(told.get("directory"))
        raise self._exit_error(program.wait(), complaints().strip(), done, total)

    def _absolute(self, directory: object) -> str:
        """The full path of what was asked for; a remote host may not name another directory."""
        if not isinstance(directory, str) or not directory.isprintable() or not directory.startswith("/"):
            raise HostError(f"`{display(directory)}` on {self.host} is not an absolute directory")
        if not f"{directory}/".endswith(f"/{self.directory.lstrip('/').rstrip('/')}/"):
            raise HostError(f"{self.host} answers for `{display(directory)}` instead of `{self.directory}`")
        return directory

    def _exit_error(self, code: int, said: str, done: int, total: int) -> HostError:
        """It ended without a word: no Python, no connection, killed."""
        if code == _NO_PROGRAM:
            return HostError(
                f"there is no `python3` on {self.host}",
                hint="`apt-get install python3` there: 3.8 or newer, and nothing else, is what staging needs",
            )
        if done == 0:
            hint = (
                "ssh has to reach it without a question (key, agent, known host), and `python3 --version` to run there"
            )
            return HostError(f"nothing can be staged on {self.host}", details=said[-2000:], hint=hint)
        why = said.splitlines()[-1] if said else f"exit code {code}"
        return download_interrupted(self._where, reason=why, full=False, done=done, total=total)

    def _verify(self, mirror: Path, there: str, listing: Listing | None) -> VerifiedCheckpoint:
        try:
            if self.hub is None:
                drafts = self.options.layer is not None
                return verify_checkpoint(mirror, self.model, speculative=drafts, sglang=self.options.sglang)
            sizes = {name: file.size for name, file in listing.files.items()} if listing else {}
            revision = listing.commit if listing else None
            return verify_fresh(mirror, self.model, replace(self.options, revision=revision, sizes=sizes))
        except CheckpointError as error:
            place, known = f"{self.host}: {there}", read_receipt(mirror)
            kind, hint = CheckpointModifiedError if self.hub is None and known else CheckpointError, self._hint
            if isinstance(error, CheckpointMismatchError):  # nothing that is fetched changes what the profile says
                kind, hint = CheckpointMismatchError, error.hint
            raise kind(
                error.message,
                where=error.where.replace(str(mirror), place),
                hint=hint,
                problems=tuple(
                    replace(problem, where=problem.where.replace(str(mirror), place)) for problem in error.problems
                ),
            ) from error

    @property
    def _hint(self) -> str:
        return f"`deploy stage PROFILE --host {self.host}` fetches what is missing"

    @property
    def _where(self) -> str:
        return f"{self.host}: {self.directory}"


def _messages(program: Program) -> Iterator[Mapping[str, object]]:
    """What it tells; lines of login scripts pass by."""
    for line in program.lines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):
            yield told


def _write(mirror: Path, told: Mapping[str, object]) -> None:
    """Write one file as it is on the remote host: its beginning, its size, its time."""
    try:
        path = join(mirror, CheckpointFile(told.get("file")))
        content = base64.b64decode(str(told.get("data")), validate=True)
        write_sparse(path, content, size=byte_count(told.get("size")), time_ns=byte_count(told.get("time")))
    except (binascii.Error, UnsafeValueError, OSError) as error:  # OSError: a file that is a folder as well
        why = error if isinstance(error, UnsafeValueError) else "it was not read whole"
        raise CheckpointError(f"cannot take `{display(told.get('file'))}` from the remote host: {why}") from error


def _number(value: object) -> int:
    try:
        return byte_count(value)
    except UnsafeValueError:
        return 0
