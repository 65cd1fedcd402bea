"""Pinned upstream files: downloaded once, verified by checksum, not part of this repository."""

import hashlib
from pathlib import Path
from typing import Final

import httpx

from orchestrator.core.errors import KernelsError
from orchestrator.core.files import write_cache
from orchestrator.core.http import Deadline, iter_capped
from orchestrator.core.safe_paths import FileName
from orchestrator.kernels.disk.pins import PinnedFile

_TIMEOUT_S: Final = 300.0  # for the whole download
_NO_ENCODING: Final = {"Accept-Encoding": "identity"}
_MAX_BYTES: Final = 64 << 20  # many times the size of aiter's tables and programs


def upstream_file(pin: PinnedFile, folder: Path, *, transport: httpx.BaseTransport | None = None) -> Path:
    """Return the path of the file below `folder`, downloaded if missing.

    Raises KernelsError if the download fails or its checksum differs, without writing a file.
    """
    path = folder / FileName(f"{pin.commit[:12]}-{pin.name}")
    if path.is_file() and _digest(path.read_bytes()) == pin.sha256:
        return path
    try:
        content = _get(pin.address, transport)
    except httpx.HTTPError as error:
        hint = f"try again; without internet: copy the file to `{path}`, or use `--no-upstream`"
        raise KernelsError(f"cannot download `{pin.name}`: {error}", location=pin.address, hint=hint) from error
    if (digest := _digest(content)) != pin.sha256:
        raise KernelsError(
            f"`{pin.name}` at commit {pin.commit[:12]} has checksum {digest[:16]}…, expected {pin.sha256[:16]}…",
            location=pin.address,
            hint="look at what that address returns, for example with `curl`: a proxy may have answered",
        )
    return write_cache(path, content)


def _get(address: str, transport: httpx.BaseTransport | None) -> bytes:
    deadline = Deadline(_TIMEOUT_S)
    with (
        deadline,
        httpx.Client(transport=transport, follow_redirects=True, timeout=60) as client,
        client.stream("GET", address, headers=_NO_ENCODING, extensions={"trace": deadline.watch}) as response,
    ):
        return b"".join(iter_capped(response.raise_for_status(), _MAX_BYTES))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
