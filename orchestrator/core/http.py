"""Total time and size limits for httpx, which limits only single waits: a response may drip forever, or never end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import httpx

from orchestrator.core.signals import start_thread_without_signals


class Deadline:
    """A time limit that shuts down the connections of all requests in its `with` block.

    Each request needs `extensions={"trace": deadline.watch}` (httpcore). A request whose connection was shut down
    fails, or seems complete if its response has no Content-Length: check `reached` afterwards.
    """

    def __init__(self, seconds: float) -> None:
        """Create a limit of `seconds`, counted from the beginning of the `with` block."""
        self.reached = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._reach)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        start_thread_without_signals(self._timer)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Record the socket of a new connection; httpcore calls this as its trace function."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.reached:
                self._shut()

    def _reach(self) -> None:
        self.reached = True
        self._shut()

    def _shut(self) -> None:
        for item in self._sockets:
            with suppress(OSError):  # already closed
                item.shutdown(socket.SHUT_RDWR)


def iter_capped(response: httpx.Response, max_bytes: int) -> Iterator[bytes]:
    """Yield the body of a response as it arrives; the request must send `Accept-Encoding: identity`.

    Raises httpx.DecodingError if the body has more than `max_bytes` bytes or is compressed: the unpacked size of a
    compressed body has no limit.
    """
    from httpx import DecodingError  # noqa: PLC0415 - takes 0.2 s; few commands send requests

    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise DecodingError("the response has an encoding that was not requested")
    read = 0
    for piece in response.iter_bytes():
        read += len(piece)
        if read > max_bytes:
            raise DecodingError(f"the response has more than {max_bytes >> 20} MiB")
        yield piece
