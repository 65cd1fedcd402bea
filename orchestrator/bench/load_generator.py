"""The load generator, with an open and a closed loop.

Open loop: each request is sent at its planned time. A slow or failed response never delays an arrival (no coordinated
omission), and latency counts from the planned time. Closed loop: a fixed number of concurrent requests, for
single-stream metrics; it hides queueing.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from orchestrator.bench.connection import Connections
from orchestrator.bench.result import BenchEnding
from orchestrator.bench.streamed_response import StreamedResponse
from orchestrator.engine.sse import Usage

Request = tuple[bytes, ...]

_LEAD_S: Final = 0.05  # between the start of the clock and the first arrival
_MAX_CONSECUTIVE_LOSSES: Final = 5  # failed connections in a row that mean a dead endpoint


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request as measured by the client; times in seconds after the first planned arrival."""

    index: int
    scheduled_s: float
    started_s: float
    ended_s: float
    chunk_s: tuple[float, ...]  # arrival times of the chunks with tokens
    chunk_tokens: tuple[int | None, ...]  # cumulative output tokens
    prompt_tokens: int | None  # token counts reported by the server
    output_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    failure: str | None
    failure_example: str

    @property
    def ok(self) -> bool:
        """Whether the response was complete and of the requested length."""
        return self.failure is None


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """The finished requests of one point, in order."""

    records: tuple[RequestRecord, ...]
    ending: BenchEnding


@dataclass(frozen=True, kw_only=True)
class RequestShape:
    """The exact input and output length of each request, and its timeout."""

    input_tokens: int
    output_tokens: int
    timeout_s: float


class _EndpointGone(Exception):  # noqa: N818 - an end, not an error
    """The endpoint is dead."""


class _Sender:
    """The sender of one point: records finished requests and detects a dead endpoint."""

    def __init__(self, connections: Connections, shape: RequestShape, *, on_end: Callable[[int], None]) -> None:
        self._connections = connections
        self._shape = shape
        self._on_end = on_end
        self._ended: list[tuple[int, float, float, float, StreamedResponse, Usage | None]] = []
        self._consecutive_losses = 0
        self.origin = 0.0

    async def send(self, index: int, request: Request, scheduled: float) -> None:
        loop = asyncio.get_running_loop()
        response = StreamedResponse(self._shape.output_tokens)
        started = loop.time()
        try:
            async with asyncio.timeout_at(max(scheduled, started) + self._shape.timeout_s):
                await self._connections.send(request, response)
        except TimeoutError:
            response.fail("timeout", f"no complete response within {self._shape.timeout_s:g} s")
        self._ended.append((index, scheduled, started, loop.time(), response, self._check_length(response)))
        self._on_end(len(self._ended))
        lost = response.failure is not None and response.failure[0] in {"refused", "unreachable", "reset"}
        self._consecutive_losses = self._consecutive_losses + 1 if lost else 0
        if self._consecutive_losses >= _MAX_CONSECUTIVE_LOSSES:
            raise _EndpointGone

    def records(self) -> tuple[RequestRecord, ...]:
        return tuple(sorted((self._record(*ended) for ended in self._ended), key=lambda record: record.index))

    def _check_length(self, response: StreamedResponse) -> Usage | None:
        """Return the token counts of the server; fail a response of another length than requested."""
        usage, requested = response.finish(), (self._shape.input_tokens, self._shape.output_tokens)
        if usage is not None and (usage.prompt_tokens, usage.output_tokens) != requested:
            counted = f"{usage.prompt_tokens} in / {usage.output_tokens} out"
            response.fail("wrong-length", f"{counted} tokens; requested {requested[0]} in / {requested[1]} out")
        return usage

    def _record(
        self,
        index: int,
        scheduled: float,
        started: float,
        ended: float,
        response: StreamedResponse,
        usage: Usage | None,
    ) -> RequestRecord:
        failure = response.failure or (None, "")
        return RequestRecord(
            index=index,
            scheduled_s=scheduled - self.origin,
            started_s=started - self.origin,
            ended_s=ended - self.origin,
            chunk_s=tuple(at - self.origin for at in response.chunk_s),
            chunk_tokens=tuple(response.chunk_tokens),
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            finish_reason=usage.finish_reason if usage else None,
            failure=failure[0],
            failure_example=failure[1],
        )


async def run_open_loop(
    connections: Connections,
    requests: Sequence[Request],
    times: Sequence[float],
    *,
    shape: RequestShape,
    on_end: Callable[[int], None],
) -> LoadResult:
    """Send `requests[i]` at `times[i]` seconds; return when all ended, on Ctrl-C, or when the endpoint dies."""
    sender = _Sender(connections, shape, on_end=on_end)
    loop = asyncio.get_running_loop()

    async def arrivals(group: asyncio.TaskGroup) -> None:
        sender.origin = loop.time() + _LEAD_S
        for index, (request, time) in enumerate(zip(requests, times, strict=True)):
            await asyncio.sleep(sender.origin + time - loop.time())
            group.create_task(sender.send(index, request, sender.origin + time))

    return await _run(sender, arrivals)


async def run_closed_loop(
    connections: Connections,
    requests: Sequence[Request],
    *,
    concurrency: int,
    shape: RequestShape,
    on_end: Callable[[int], None],
) -> LoadResult:
    """Keep `concurrency` requests in flight until all are sent."""
    sender = _Sender(connections, shape, on_end=on_end)
    loop = asyncio.get_running_loop()
    pending = iter(enumerate(requests))

    async def send_sequentially() -> None:
        for index, request in pending:
            await sender.send(index, request, loop.time())

    async def streams(group: asyncio.TaskGroup) -> None:
        sender.origin = loop.time()
        for _ in range(concurrency):
            group.create_task(send_sequentially())

    return await _run(sender, streams)


async def _run(sender: _Sender, load: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> LoadResult:
    ending = BenchEnding.COMPLETE
    with _gc_disabled():
        try:
            async with asyncio.TaskGroup() as group:
                await load(group)
        except* _EndpointGone:
            ending = BenchEnding.ENDPOINT_DIED
        except* asyncio.CancelledError:
            ending = BenchEnding.INTERRUPTED
    if ending is BenchEnding.INTERRUPTED and (task := asyncio.current_task()) is not None:
        task.uncancel()  # Ctrl-C ends the load, not the program: finished requests are still reported
    return LoadResult(records=sender.records(), ending=ending)


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection: a full pass over the prepared requests takes tens of milliseconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
