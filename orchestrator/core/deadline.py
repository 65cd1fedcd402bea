"""The end of a request over httpx, which limits each wait for the network: an answer may drip for ever."""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from orchestrator.core.signals import start_deaf


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
        start_deaf(self._timer)
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
