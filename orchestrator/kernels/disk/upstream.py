"""Pinned files of others: downloaded once, kept by their checksum, never committed to this repository."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from orchestrator.core.errors import KernelsError
from orchestrator.core.files import write_cache
from orchestrator.core.http import Deadline, iter_capped
from orchestrator.core.safe_paths import FileName
from orchestrator.kernels.disk.pins import PinnedFile

_WITHIN: Final = 300.0  # seconds for the whole of it
_AS_IT_IS: Final = {"Accept-Encoding": "identity"}
_MOST: Final = 64 << 20  # bytes, many times what a table or a program of aiter's has


def upstream_file(
    pin: PinnedFile,
    folder: Path,
    *,
    without: str = "",
    transport: httpx.BaseTransport | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The path of the file below `folder`, downloaded where it is not there yet.

    Asks again, after 1 s and 2 s, where the network or the host fails for the moment. `without` is a way on without the
    file. Raises KernelsError where the network or the checksum says no; nothing is left behind then.
    """
    path = folder / FileName(f"{pin.commit[:12]}-{pin.name}")
    if path.is_file() and _digest(path.read_bytes()) == pin.sha256:
        return path
    content = _download(pin, _Transport(transport, sleep), instead=f"put the file at `{path}`{without}")
    if (digest := _digest(content)) != pin.sha256:
        raise KernelsError(
            f"`{pin.name}` at commit {pin.commit[:12]} has checksum {digest[:16]}…, pinned is {pin.sha256[:16]}…",
            where=pin.address,
            hint="a proxy may have answered in its place; look at what that address returns",
        )
    return write_cache(path, content)


@dataclass(frozen=True)
class _Transport:
    """How the download reaches its host, and how it waits."""

    transport: httpx.BaseTransport | None
    sleep: Callable[[float], None]


def _download(pin: PinnedFile, way: _Transport, *, instead: str) -> bytes:
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential  # noqa: PLC0415 - 60 ms

    again = Retrying(
        retry=retry_if_exception(_passes),
        stop=stop_after_attempt(3),
        wait=wait_exponential(),
        sleep=way.sleep,
        reraise=True,
    )
    try:
        return again(_get, pin.address, way.transport)
    except httpx.HTTPError as error:
        raise KernelsError(
            f"`{pin.name}` cannot be downloaded: {error}",
            where=pin.address,
            hint=f"on a machine without internet {instead}",
        ) from error


def _get(address: str, transport: httpx.BaseTransport | None) -> bytes:
    end = Deadline(_WITHIN)
    with (
        end,
        httpx.Client(transport=transport, follow_redirects=True, timeout=60) as client,
        client.stream("GET", address, headers=_AS_IT_IS, extensions={"trace": end.watch}) as answer,
    ):
        return b"".join(iter_capped(answer.raise_for_status(), _MOST))


def _passes(error: BaseException) -> bool:
    """Whether another try may find what this one did not: not after an answer that blames the request."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    return isinstance(error, httpx.TransportError)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
