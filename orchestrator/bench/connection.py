"""Connections to one endpoint, as raw asyncio protocols: each arrival is stamped when the socket is read.

httpx 0.28.1 saturates near 5,000 server-sent events per second and then adds its own queueing to the TTFT.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from orchestrator.bench.http1 import MalformedError, ResponseFraming
from orchestrator.core.secrets import Secret
from orchestrator.core.url import Address
from orchestrator.engine.endpoints import authorization
from orchestrator.engine.responses import UnexpectedResponseError

# uvicorn closes an idle connection after 5 s unless SGLANG_TIMEOUT_KEEP_ALIVE is raised.
_MAX_IDLE_S: Final = 2.0


class Sink(Protocol):
    """A consumer of one response."""

    framing: ResponseFraming

    def feed(self, data: bytes, now: float) -> None:
        """Consume bytes that arrived at `now`."""

    def fail(self, kind: str, example: str) -> None:
        """Record why the response is incomplete."""


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self.open = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - create_connection creates no other kind
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        if self._sink is None:
            self.close()  # unsolicited data
            return
        try:
            self._sink.feed(data, now)
        except (MalformedError, UnexpectedResponseError) as error:
            self._sink.fail("malformed", str(error))
            self.close()
            self._finish()
            return
        if self._sink.framing.complete:
            self.idle_since = now
            if not self._sink.framing.keep_alive:
                self.close()
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._sink is not None:
            if exc is not None or not self._sink.framing.closed():
                self._sink.fail("reset", str(exc) if exc else "the connection closed before the response was complete")
            self._finish()

    async def exchange(self, request: Sequence[bytes], sink: Sink) -> None:
        """Send `request` and wait until the response completes or fails."""
        assert self._transport is not None  # noqa: S101 - connected before use
        self._sink = sink
        self._done = asyncio.get_running_loop().create_future()
        try:
            self._transport.writelines(request)
            await self._done
        except BaseException:  # timeout or Ctrl-C: discard the rest of the response
            self._sink = None
            self.close()
            raise

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _finish(self) -> None:
        self._sink = None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class Connections:
    """A pool of connections to one endpoint."""

    def __init__(self, address: Address, *, key: Secret | None, clock: Callable[[], float]) -> None:
        """Create an empty pool; `clock` must be the clock that schedules the requests."""
        self._address = address
        self._key = key
        self._clock = clock
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[_Connection] = []

    def head(self, path: str, length: int, headers: Mapping[str, str]) -> bytes:
        """Return the head of a POST with these and other headers. It contains the API key: never show or store it."""
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        lines = [
            f"POST {self._address.base}{path} HTTP/1.1",
            f"Host: {host}:{self._address.port}",
            "Accept: */*",
            f"Content-Length: {length}",
            "Content-Type: application/json",
            *(f"{name}: {value}" for name, value in {**headers, **authorization(self._key)}.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def send(self, request: Sequence[bytes], sink: Sink) -> None:
        """Send one request. Errors are reported to `sink`; only a cancellation is raised.

        If the server closes a reused connection before its first byte, the request is sent again once: this is the
        keep-alive limit, not a failure (RFC 9112, 9.3.1). The lost time counts, as latency counts from the schedule.
        """
        connection = self._reusable()
        if connection is not None:
            attempt = _RetryableSink(sink)
            await connection.exchange(request, attempt)
            if not attempt.lost:
                self._release(connection)
                return
        try:
            connection = await self._open()
        except OSError as error:
            sink.fail("refused" if isinstance(error, ConnectionRefusedError) else "unreachable", str(error))
            return
        await connection.exchange(request, sink)
        self._release(connection)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _reusable(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and self._clock() - connection.idle_since < _MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def _release(self, connection: _Connection) -> None:
        if connection.open:
            self._idle.append(connection)

    async def _open(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._clock), self._address.host, self._address.port, ssl=self._tls
        )
        return connection


class _RetryableSink:
    """A sink that forwards everything to another sink, except a failure before the first byte."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.framing = sink.framing
        self.lost = False

    def feed(self, data: bytes, now: float) -> None:
        self._sink.feed(data, now)

    def fail(self, kind: str, example: str) -> None:
        self.lost = not self.framing.has_data
        if not self.lost:
            self._sink.fail(kind, example)
