"""Staging on a remote host: its Python downloads the checkpoint, this host verifies it.

Weights are verified by their headers and sizes. The remote host sends these and the small files; this host writes them
as a mirror, a directory of sparse files, and verifies it like a local checkpoint. The receipt is saved on the remote
host.
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
    OTHER_DIRECTORY,
    DownloadProgress,
    download_interrupted,
    progress_from,
    rate_window,
)
from orchestrator.checkpoints.hub import Hub, Listing, download_url, list_files
from orchestrator.checkpoints.receipt import read_receipt, receipt_path
from orchestrator.checkpoints.verify import VerifiedCheckpoint, VerifyOptions, verify_checkpoint, verify_fresh
from orchestrator.core import safe_paths
from orchestrator.core.disk_space import disk_full_error
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
    """A checkpoint on a remote host; `directory` is absolute, or relative to the tool's home on that host."""

    host: str  # as the user named it
    directory: str
    model: Model
    options: VerifyOptions
    hub: Hub | None  # None: verify only
    progress: Callable[[DownloadProgress], None]
    mirror: Path | None = None  # directory that keeps the mirror after verification; None: discard it

    def run(self, program: Program, read_stderr: Callable[[], str]) -> VerifiedCheckpoint:
        """Run the protocol with the started program; `read_stderr` returns the stderr of the program and ssh.

        Raises CheckpointError for a checkpoint that is not whole, HostError for a machine without Python, a hub that
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
        """Return a directory for the mirror, next to its target: a move keeps files sparse."""
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
        """Process messages until the end; return the full path of the directory on the host."""
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
                needed, free = _number(room.get("missing")), _number(room.get("free"))
                raise disk_full_error(self._where, needed=needed, free=free, hint=OTHER_DIRECTORY)
            elif "nothing" in told:
                message = f"no checkpoint of `{self.model.name}` found"
                raise CheckpointNotFoundError(message, location=f"{self.host}: {told['nothing']}", hint=self._hint)
            elif "end" in told:
                return self._absolute(told.get("directory"))
        raise self._exit_error(program.wait(), complaints().strip(), done, total)

    def _absolute(self, directory: object) -> str:
        """Return the full path of the requested directory; reject any other."""
        if not isinstance(directory, str) or not directory.isprintable() or not directory.startswith("/"):
            raise HostError(f"`{display(directory)}` on {self.host} is not an absolute path")
        if not f"{directory}/".endswith(f"/{self.directory.lstrip('/').rstrip('/')}/"):
            raise HostError(f"{self.host} returned `{display(directory)}` instead of `{self.directory}`")
        return directory

    def _exit_error(self, code: int, said: str, done: int, total: int) -> HostError:
        """Return the error for a program that exited early: no Python, no connection, killed."""
        if code == _NO_PROGRAM:
            return HostError(
                f"no `python3` found on {self.host}",
                hint="run `apt-get install python3` on that host: staging needs Python 3.8 or newer",
            )
        if done == 0:
            hint = "check that ssh connects without a prompt (key, agent, known host) and runs `python3 --version`"
            return HostError(f"cannot stage on {self.host}", details=said[-2000:], hint=hint)
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
            if isinstance(error, CheckpointMismatchError):  # a download does not fix the profile
                kind, hint = CheckpointMismatchError, error.hint
            raise kind(
                error.message,
                location=error.location.replace(str(mirror), place),
                hint=hint,
                problems=tuple(
                    replace(problem, location=problem.location.replace(str(mirror), place))
                    for problem in error.problems
                ),
            ) from error

    @property
    def _hint(self) -> str:
        return f"`deploy stage PROFILE --host {self.host}` downloads missing files"

    @property
    def _where(self) -> str:
        return f"{self.host}: {self.directory}"


def _messages(program: Program) -> Iterator[Mapping[str, object]]:
    """Yield the messages; skip lines of login scripts."""
    for line in program.lines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):
            yield told


def _write(mirror: Path, told: Mapping[str, object]) -> None:
    """Write one sparse file of the mirror: its beginning, size and mtime."""
    try:
        path = join(mirror, CheckpointFile(told.get("file")))
        content = base64.b64decode(str(told.get("data")), validate=True)
        write_sparse(path, content, size=byte_count(told.get("size")), time_ns=byte_count(told.get("time")))
    except (binascii.Error, UnsafeValueError, OSError) as error:  # OSError: a file that is also a folder
        reason = error if isinstance(error, UnsafeValueError) else "incomplete message"
        raise CheckpointError(f"cannot read `{display(told.get('file'))}` from the remote host: {reason}") from error


def _number(value: object) -> int:
    try:
        return byte_count(value)
    except UnsafeValueError:
        return 0
