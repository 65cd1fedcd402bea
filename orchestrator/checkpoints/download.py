"""Staging: download of a checkpoint from the hub, resumable at any byte, then verification."""

import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.hub import Hub, Listing, download_url, list_files
from orchestrator.checkpoints.profile_match import require_profile_match
from orchestrator.checkpoints.verify import VerifiedCheckpoint, VerifyOptions, verify_fresh
from orchestrator.core import subprocesses
from orchestrator.core.disk_space import disk_full_error
from orchestrator.core.errors import HostError
from orchestrator.core.safe_paths import UnsafeValueError, byte_count
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.core.text import gb
from orchestrator.plan.plan import Model

OTHER_DIRECTORY: Final = "use another directory: `--dir DIR`"
_WINDOW: Final = 30  # samples of the rate's moving average, one a second


@dataclass(frozen=True, kw_only=True)
class DownloadProgress:
    """Progress of a download: bytes, and bytes per second over the last half minute."""

    done: int
    total: int
    rate: float

    @property
    def eta(self) -> float | None:
        """Seconds left at this rate; None if unknown."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


def stage_checkpoint(
    model: Model, directory: Path, options: VerifyOptions, *, hub: Hub, progress: Callable[[DownloadProgress], None]
) -> VerifiedCheckpoint:
    """Download missing files of a model's checkpoint and verify all files against the hub's sizes.

    The listing of the hub completes `options`. A checkpoint from another source is only verified. Raises
    CheckpointError if the checkpoint is incomplete, and HostError if the hub does not answer, the disk is full, or the
    download is interrupted: received bytes remain, and the next call resumes.
    """
    if model.checkpoint.source != "hub":
        return verify_fresh(directory, model, options)
    listing = list_files(model.checkpoint.path, model.checkpoint.revision, hub)
    ignore_sigpipe()
    directory.mkdir(parents=True, exist_ok=True)
    config, path = listing.files.get(CONFIG), directory / CONFIG

    def show_and_check(state: DownloadProgress) -> None:  # a mismatched config ends the download
        progress(state)
        if config is not None and path.is_file() and path.stat().st_size == config.size:
            require_profile_match(directory, model)

    _download(directory, listing, hub, show_and_check)
    sizes = {name: file.size for name, file in listing.files.items()}
    return verify_fresh(directory, model, replace(options, revision=listing.commit, sizes=sizes))


def _download(directory: Path, listing: Listing, hub: Hub, progress: Callable[[DownloadProgress], None]) -> None:
    argv = subprocesses.python_module_argv("orchestrator.checkpoints.remote_fetch")
    request = json.dumps({**download_request(str(directory.absolute()), listing, hub), "here": True}) + "\n"
    with (
        tempfile.TemporaryFile() as log,
        subprocesses.start(argv, stdin=subprocesses.PIPE, output=subprocesses.PIPE, errors=log, tied=True) as program,
    ):
        program.feed(request)
        transfer = Transfer(str(directory), listing.size, progress)
        if not any("end" in message for message in transfer.messages(program)):
            code = program.wait()
            log.seek(0)
            raise transfer.interrupted(log.read().decode(errors="replace"), code)


def download_request(directory: str, listing: Listing, hub: Hub) -> dict[str, object]:
    """Return the request for the download program."""
    address, headers = download_url(listing, hub)
    files, commit = listing.contents, listing.commit
    return {"directory": directory, "files": files, "commit": commit, "address": address, "headers": headers}


class Transfer:
    """The progress of a download program; `location` is its directory in messages."""

    def __init__(self, location: str, total: int, progress: Callable[[DownloadProgress], None]) -> None:
        """Begin a transfer of `total` bytes."""
        self.location, self.total, self.done = location, total, 0
        self._progress = progress
        self._samples = deque[tuple[float, int]](maxlen=_WINDOW)

    def messages(self, program: subprocesses.Program) -> Iterator[Mapping[str, object]]:
        """Yield the messages of the program, except its progress.

        Raises HostError if the disk is full or the download fails.
        """
        for line in program.lines():
            try:
                message = json.loads(line)
            except ValueError:
                continue  # output of a login script
            if not isinstance(message, dict):
                continue
            if "done" in message:
                self._show(byte_count_or_0(message["done"]))
            elif "error" in message:
                raise self._error(str(message["error"]), full=bool(message.get("full")))
            elif isinstance(space := message.get("room"), dict):
                needed, free = byte_count_or_0(space.get("missing")), byte_count_or_0(space.get("free"))
                raise disk_full_error(self.location, needed=needed, free=free, hint=OTHER_DIRECTORY)
            else:
                yield message

    def interrupted(self, stderr: str, code: int) -> HostError:
        """Return the error for a program that exited early."""
        lines = stderr.strip().splitlines()
        return self._error(lines[-1] if lines else f"exit code {code}", full=False)

    def _show(self, done: int) -> None:
        self.done = done
        self._samples.append((time.monotonic(), done))
        (start, before), (now, _) = self._samples[0], self._samples[-1]
        rate = (done - before) / (now - start) if now > start else 0.0
        self._progress(DownloadProgress(done=done, total=self.total, rate=rate))

    def _error(self, reason: str, *, full: bool) -> HostError:
        hint = f"run the same command again: it resumes at {gb(self.done)} of {gb(self.total)}"
        if full:
            hint = f"free {gb(self.total - self.done)}, then {hint}"
            return HostError("the disk is full", location=self.location, hint=hint)
        return HostError(f"the download failed: {reason}", location=self.location, hint=hint)


def byte_count_or_0(value: object) -> int:
    """Return a size in bytes; 0 for any other value."""
    try:
        return byte_count(value)
    except UnsafeValueError:
        return 0
