"""The pinned upstream table: downloaded once, kept by its checksum, never committed to this repository."""

import hashlib
from pathlib import Path

import httpx

from orchestrator.errors import KernelsError
from orchestrator.files import write_whole
from orchestrator.tuning.pins import Upstream


def upstream_table(pin: Upstream, folder: Path, *, transport: httpx.BaseTransport | None = None) -> Path:
    """The path of the table below `folder`, downloaded where it is not there yet.

    Raises KernelsError where the network or the checksum says no; nothing is left behind then.
    """
    path = folder / f"{pin.commit[:12]}-{Path(pin.path).name}"
    if path.is_file() and _digest(path.read_bytes()) == pin.sha256:
        return path
    content = _download(pin, path, transport)
    if (digest := _digest(content)) != pin.sha256:
        raise KernelsError(
            f"the table at aiter {pin.commit[:12]} has checksum {digest[:16]}…, pinned is {pin.sha256[:16]}…",
            where=pin.address,
            hint="a proxy may have answered in its place; look at what that address returns",
        )
    return write_whole(path, content)


def _download(pin: Upstream, path: Path, transport: httpx.BaseTransport | None) -> bytes:
    try:
        with httpx.Client(transport=transport, follow_redirects=True, timeout=60) as client:
            return client.get(pin.address).raise_for_status().content
    except httpx.HTTPError as error:
        raise KernelsError(
            f"aiter's table cannot be downloaded: {error}",
            where=pin.address,
            hint=f"on a machine without internet put the file at `{path}`, or go without it: `--no-upstream`",
        ) from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
