"""Staging on a remote host: its Python downloads the checkpoint, this host verifies it.

Weights are verified by their headers and sizes. The remote host sends these and the small files; this host writes a
mirror, a directory of sparse files, and verifies it like a local checkpoint. The remote host saves the receipt.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.checkpoints import remote_fetch
from orchestrator.checkpoints.download import DownloadProgress, Transfer, download_request
from orchestrator.checkpoints.hub import Hub, Listing, list_files
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


def remote_program() -> list[str]:
    """Return the command for the remote host, with program and imported module as text, so that it installs nothing."""
    needed = (
        f"import sys, types\nsys.modules[{safe_paths.__name__!r}] = module = types.ModuleType({safe_paths.__name__!r})"
    )
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (safe_paths, remote_fetch)]
    return ["python3", "-I", "-c", f"{needed}\nexec({sources[0]!r}, module.__dict__)\nexec({sources[1]!r})"]


@dataclass(frozen=True, kw_only=True)
class RemoteDownload:
    """A checkpoint on a remote host; `directory` is absolute, or relative to `deploy`'s home on that host."""

    host: str  # as named by the user
    directory: str
    model: Model
    options: VerifyOptions
    hub: Hub | None  # None: verify only
    progress: Callable[[DownloadProgress], None]
    mirror: Path | None = None  # directory for the mirror after verification; None: discard it

    def run(self, program: Program, read_stderr: Callable[[], str]) -> VerifiedCheckpoint:
        """Run the protocol with the started program; `read_stderr` returns the stderr of the program and ssh.

        Raises CheckpointError if the checkpoint is incomplete, and HostError if the host has no Python, the hub does
        not answer, the disk is full, or the download is interrupted: received bytes remain, and the next call resumes.
        """
        source, hub = self.model.checkpoint, self.hub
        listing = list_files(source.path, source.revision, hub) if hub and source.source == "hub" else None
        verify_only: dict[str, object] = {"directory": self.directory, "files": {}}
        request = download_request(self.directory, listing, hub) if listing and hub else verify_only
        program.feed(json.dumps(request) + "\n")
        with self._temporary_dir() as folder:
            mirror = Path(folder) / "checkpoint"
            mirror.mkdir()
            directory = self._receive(program, mirror, listing, read_stderr)
            verified = self._verify(mirror, directory, listing)
            program.feed(json.dumps(json.loads(receipt_path(mirror).read_text())) + "\n")
            program.wait()
            if self.mirror is not None:
                replace_folder(mirror, self.mirror)
        return replace(verified, directory=Path(directory))

    def _temporary_dir(self) -> "TemporaryDirectory[str]":
        """Return a temporary directory next to the mirror's target, so that a move keeps files sparse."""
        if self.mirror is None:
            return TemporaryDirectory(prefix="deploy-mirror-")
        self.mirror.parent.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix=".deploy-mirror-", dir=self.mirror.parent)

    def _receive(self, program: Program, mirror: Path, listing: Listing | None, read_stderr: Callable[[], str]) -> str:
        """Process messages until the end; return the full path of the directory on the host."""
        transfer = Transfer(f"{self.host}: {self.directory}", listing.size if listing else 0, self.progress)
        for message in transfer.messages(program):
            if "receipt" in message:
                write_cache(receipt_path(mirror), str(message["receipt"]))
            elif "file" in message:
                _write(mirror, message)
            elif "nothing" in message:
                raise CheckpointNotFoundError(
                    f"no checkpoint of `{self.model.name}` found",
                    location=f"{self.host}: {message['nothing']}",
                    hint=self._hint,
                )
            elif "end" in message:
                return self._checked_path(message.get("directory"))
        raise self._exit_error(program.wait(), read_stderr().strip(), transfer)

    def _checked_path(self, directory: object) -> str:
        """Return the full path of the requested directory; reject other paths."""
        if not isinstance(directory, str) or not directory.isprintable() or not directory.startswith("/"):
            raise HostError(f"`{display(directory)}` on {self.host} is not an absolute path")
        if not f"{directory}/".endswith(f"/{self.directory.lstrip('/').rstrip('/')}/"):
            raise HostError(f"{self.host} returned `{display(directory)}` instead of `{self.directory}`")
        return directory

    def _exit_error(self, code: int, stderr: str, transfer: Transfer) -> HostError:
        """Return the error for a program that exited early: no Python, no connection, killed."""
        if transfer.done == 0:
            hint = (
                "check that ssh connects without a prompt (key, agent, known host) and runs `python3 --version` (3.8)"
            )
            return HostError(f"cannot stage on {self.host}", details=stderr[-2000:], hint=hint)
        return transfer.interrupted(stderr, code)

    def _verify(self, mirror: Path, directory: str, listing: Listing | None) -> VerifiedCheckpoint:
        try:
            if self.hub is None:
                drafts = self.options.layer is not None
                return verify_checkpoint(mirror, self.model, speculative=drafts, sglang=self.options.sglang)
            sizes = {name: file.size for name, file in listing.files.items()} if listing else {}
            revision = listing.commit if listing else None
            return verify_fresh(mirror, self.model, replace(self.options, revision=revision, sizes=sizes))
        except CheckpointError as error:
            local, remote = str(mirror), f"{self.host}: {directory}"
            error_type, hint = CheckpointError, self._hint
            if isinstance(error, CheckpointMismatchError):  # a download cannot fix the profile
                error_type, hint = CheckpointMismatchError, error.hint
            elif self.hub is None and read_receipt(mirror):
                error_type = CheckpointModifiedError
            raise error_type(
                error.message,
                location=error.location.replace(local, remote),
                hint=hint,
                problems=tuple(
                    replace(problem, location=problem.location.replace(local, remote)) for problem in error.problems
                ),
            ) from error

    @property
    def _hint(self) -> str:
        return f"`deploy stage PROFILE --host {self.host}` downloads missing files"


def _write(mirror: Path, message: Mapping[str, object]) -> None:
    """Write one sparse file of the mirror: its beginning, size and mtime."""
    try:
        path = join(mirror, CheckpointFile(message.get("file")))
        content = base64.b64decode(str(message.get("data")), validate=True)
        write_sparse(path, content, size=byte_count(message.get("size")), time_ns=byte_count(message.get("time")))
    except (binascii.Error, UnsafeValueError, OSError) as error:  # OSError: a file that is also a folder
        name, reason = display(message.get("file")), error if isinstance(error, UnsafeValueError) else "bad message"
        raise CheckpointError(f"cannot read `{name}` from the remote host: {reason}") from error
