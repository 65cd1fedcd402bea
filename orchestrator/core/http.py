"""What httpx leaves open: it limits each wait for the network, and an answer may drip for ever, or be of any size."""

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
    """Shuts the connections of the requests in its `with` block when so many seconds are over.

    Each request takes `watch` along, as `extensions={"trace": deadline.watch}` (httpcore). One whose connection was
    shut fails, or seems to have ended where its answer has no length: look at `reached` afterwards.
    """

    def __init__(self, seconds: float) -> None:
        """Begin to count when the block is entered."""
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
        """Take a connection's socket."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.reached:
                self._shut()

    def _reach(self) -> None:
        self.reached = True
        self._shut()

    def _shut(self) -> None:
        for each in self._sockets:
            with suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)


def iter_capped(answer: httpx.Response, most: int) -> Iterator[bytes]:
    """The body of an answer as it comes, at most so many bytes of it: ask for it with `Accept-Encoding: identity`.

    Raises httpx.DecodingError for a longer one, and for one that is packed: what a few bytes unpack to has no bound.
    """
    from httpx import DecodingError  # noqa: PLC0415 - it takes 0.2 s, and few commands ask

    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise DecodingError("it answers in an encoding that was not asked for")
    read = 0
    for piece in answer.iter_bytes():
        read += len(piece)
        if read > most:
            raise DecodingError(f"it answers with more than {most >> 20} MiB")
        yield piece
