"""Staging: download of a checkpoint from the hub, resumable at any byte, then verification."""

import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.hub import DISK_FULL, Hub, Listing, list_files
from orchestrator.checkpoints.profile_match import require_profile_match
from orchestrator.checkpoints.remote_fetch import arrived_bytes
from orchestrator.checkpoints.verify import VerifiedCheckpoint, VerifyOptions, verify_fresh
from orchestrator.core import subprocesses
from orchestrator.core.disk_space import require_disk_space
from orchestrator.core.errors import HostError
from orchestrator.core.secrets import HUB_TOKEN
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.plan.plan import Model

OTHER_DIRECTORY: Final = "use another directory: `--dir DIR`"
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_TICK = 1.0
_WINDOW = 30  # ticks of the rate's moving average


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

    The listing of the hub completes `options`. A checkpoint that does not come from a hub is only verified. Raises
    CheckpointError if the checkpoint is incomplete, and HostError if the hub does not answer, the disk is full, or the
    download is interrupted: received bytes stay, and the next call resumes.
    """
    if model.checkpoint.source != "hub":
        return verify_fresh(directory, model, options)
    listing = list_files(model.checkpoint.path, model.checkpoint.revision, hub)
    ignore_sigpipe()
    directory.mkdir(parents=True, exist_ok=True)
    require_disk_space(directory, listing.size - _arrived(directory, listing), hint=OTHER_DIRECTORY)
    _download(directory, listing, hub, lambda seen: _check_progress(seen, directory, model, listing, progress))
    sizes = {name: file.size for name, file in listing.files.items()}
    return verify_fresh(directory, model, replace(options, revision=listing.commit, sizes=sizes))


def _check_progress(
    seen: DownloadProgress,
    directory: Path,
    model: Model,
    listing: Listing,
    progress: Callable[[DownloadProgress], None],
) -> None:
    """Show the progress; abort if the downloaded config does not match the profile."""
    progress(seen)
    config, path = listing.files.get(CONFIG), directory / CONFIG
    if config is not None and path.is_file() and path.stat().st_size == config.size:
        require_profile_match(directory, model)


def _arrived(directory: Path, listing: Listing) -> int:
    return arrived_bytes(listing.contents, listing.commit, directory)


def _download(directory: Path, listing: Listing, hub: Hub, progress: Callable[[DownloadProgress], None]) -> None:
    argv = subprocesses.python_module_argv("orchestrator.checkpoints.fetch", str(directory))
    env = {**_QUIET, "HF_ENDPOINT": hub.endpoint, HUB_TOKEN: hub.token.reveal() if hub.token else None}
    request, window = listing.to_json().encode(), rate_window()
    with (
        tempfile.TemporaryFile() as log,
        subprocesses.start(argv, env=env, stdin=request, output=log, tied=True) as child,
    ):
        code = None
        while code is None:
            progress(progress_from(window, _arrived(directory, listing), listing.size))
            code = child.wait_for(_TICK)
        progress(progress_from(window, _arrived(directory, listing), listing.size))
        if code:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise download_interrupted(
                str(directory),
                reason=lines[-1] if lines else f"exit code {code}",
                full=code == DISK_FULL,
                done=_arrived(directory, listing),
                total=listing.size,
            )


def progress_from(window: deque[tuple[float, int]], done: int, total: int) -> DownloadProgress:
    """Compute the progress of a download; `window` holds the samples of the last half minute."""
    window.append((time.monotonic(), done))
    (start, before), (now, _) = window[0], window[-1]
    return DownloadProgress(done=done, total=total, rate=(done - before) / (now - start) if now > start else 0.0)


def rate_window() -> deque[tuple[float, int]]:
    """Return an empty window of samples for `progress_from`."""
    return deque(maxlen=_WINDOW)


def download_interrupted(location: str, *, reason: str, full: bool, done: int, total: int) -> HostError:
    """Return the error for an interrupted download."""
    hint = f"run the same command again: it resumes at {done / 1e9:.1f} of {total / 1e9:.1f} GB"
    if full:
        hint = f"free {(total - done) / 1e9:.1f} GB, then {hint}"
        return HostError("the disk is full", location=location, hint=hint)
    return HostError(f"the download failed: {reason}", location=location, hint=hint)
