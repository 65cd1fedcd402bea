"""Staging: a checkpoint from the hub onto this machine, resumable at any byte, then verified."""

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import shell
from orchestrator.core.errors import HostError
from orchestrator.core.secret import HUB_TOKEN
from orchestrator.plan import Model
from orchestrator.weights.hub import FULL, PARTS, Hub, Listing, list_files
from orchestrator.weights.verify import Verified, examine

_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_TICK = 1.0
_WINDOW = 30  # ticks over which the rate is taken


@dataclass(frozen=True, kw_only=True)
class DownloadProgress:
    """How far a download is: bytes, bytes per second over the last half minute, and seconds to go (None: unknown)."""

    done: int
    total: int
    rate: float

    @property
    def eta(self) -> float | None:
        """Seconds to go at this rate."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


def stage_checkpoint(
    model: Model, directory: Path, *, speculative: bool, hub: Hub, progress: Callable[[DownloadProgress], None]
) -> Verified:
    """Fetch what is missing of a model's checkpoint and verify all of it against the hub's sizes.

    A checkpoint that does not come from a hub is verified where it lies. Raises WeightsError for a checkpoint that is
    not whole, HostError for a hub that cannot be asked, a full disk, a download that broke off: what has arrived stays
    and the next call resumes.
    """
    layer = model.mtp_layer if speculative else None
    if model.source.kind != "hub":
        return examine(directory, model, layer=layer, revision=None, sizes={})
    listing = list_files(model.source.location, model.source.revision, hub)
    directory.mkdir(parents=True, exist_ok=True)
    _require_room(directory, listing)
    _download(directory, listing, hub, progress)
    sizes = {name: file.size for name, file in listing.files.items()}
    return examine(directory, model, layer=layer, revision=listing.commit, sizes=sizes)


def arrived_bytes(directory: Path, listing: Listing) -> int:
    """Bytes of the listed files that are here, whole or in part."""
    parts = directory / PARTS / listing.commit
    return sum(
        file.size if _size(directory / name) == file.size else _size(parts / f"{name}.part")
        for name, file in listing.files.items()
    )


def _require_room(directory: Path, listing: Listing) -> None:
    missing = listing.size - arrived_bytes(directory, listing)
    free = shutil.disk_usage(directory).free
    if missing > free:
        raise HostError(
            f"{missing / 1e9:.1f} GB are to come and {free / 1e9:.1f} GB are free",
            where=str(directory),
            hint="free some, or stage elsewhere: `--dir DIR`",
        )


def _download(directory: Path, listing: Listing, hub: Hub, progress: Callable[[DownloadProgress], None]) -> None:
    argv = shell.own("orchestrator.weights.fetch", str(directory))
    env = {**_QUIET, "HF_ENDPOINT": hub.endpoint, HUB_TOKEN: hub.token.reveal() if hub.token else None}
    asked, seen = listing.to_json().encode(), deque[tuple[float, int]](maxlen=_WINDOW)
    with (
        tempfile.TemporaryFile() as log,
        shell.start(argv, env=env, stdin=asked, output=log, tied=True) as child,
    ):
        code = None
        while code is None:
            progress(_measure(directory, listing, seen))
            code = child.wait_for(_TICK)
        progress(_measure(directory, listing, seen))
        if code:
            log.seek(0)
            said = log.read().decode(errors="replace")
            raise _broken(directory, listing, code, said)


def _measure(directory: Path, listing: Listing, seen: deque[tuple[float, int]]) -> DownloadProgress:
    seen.append((time.monotonic(), arrived_bytes(directory, listing)))
    (start, before), (now, done) = seen[0], seen[-1]
    return DownloadProgress(done=done, total=listing.size, rate=(done - before) / (now - start) if now > start else 0.0)


def _broken(directory: Path, listing: Listing, code: int, log: str) -> HostError:
    done = arrived_bytes(directory, listing)
    again = f"run the same again: {done / 1e9:.1f} of {listing.size / 1e9:.1f} GB are here and are kept"
    if code == FULL:
        needed = f"free {(listing.size - done) / 1e9:.1f} GB"
        return HostError("the disk is full", where=str(directory), hint=f"{needed} and {again}")
    lines = log.strip().splitlines()
    why = lines[-1] if lines else f"exit code {code}"
    return HostError(f"the download broke off: {why}", where=str(directory), hint=again)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
