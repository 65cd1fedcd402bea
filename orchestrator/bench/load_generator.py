"""Sending the load. Open loop: requests leave at their planned times whatever became of the others.

A slow or failed answer therefore never delays an arrival (no coordinated omission), and latency is counted from the
planned time. Closed loop: a fixed number of requests at a time, for single-stream figures; it hides queueing.
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
_DEAD_AFTER: Final = 5  # requests in a row that found no connection, or lost it: the endpoint is gone


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it; times in seconds after the first planned arrival."""

    index: int
    scheduled_s: float
    started_s: float
    ended_s: float
    chunk_s: tuple[float, ...]  # arrivals of the chunks that carry tokens
    chunk_tokens: tuple[int | None, ...]  # output tokens so far
    prompt_tokens: int | None  # the server's counts; None where it gave none
    output_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    failure: str | None
    failure_example: str

    @property
    def ok(self) -> bool:
        """Whether a whole answer came, of the length that was asked for."""
        return self.failure is None


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """What came of one point's requests: those that ended, in order."""

    samples: tuple[RequestRecord, ...]
    ending: BenchEnding


@dataclass(frozen=True, kw_only=True)
class RequestShape:
    """What each request of a load asks for, exactly, and the seconds its answer may take."""

    input_tokens: int
    output_tokens: int
    timeout_s: float


class _EndpointGone(Exception):  # noqa: N818 - an end, not an error
    """The endpoint is gone."""


class _Sender:
    """Sends requests, keeps what ended, and notices when nobody answers any more."""

    def __init__(self, connections: Connections, asked: RequestShape, *, on_end: Callable[[int], None]) -> None:
        self._connections = connections
        self._asked = asked
        self._on_end = on_end
        self._ended: list[tuple[int, float, float, float, StreamedResponse, Usage | None]] = []
        self._lost_in_a_row = 0
        self.origin = 0.0

    async def send(self, index: int, request: Request, scheduled: float) -> None:
        loop = asyncio.get_running_loop()
        answer = StreamedResponse(self._asked.output_tokens)
        started = loop.time()
        try:
            async with asyncio.timeout_at(max(scheduled, started) + self._asked.timeout_s):
                await self._connections.send(request, answer)
        except TimeoutError:
            answer.fail("timeout", f"no whole answer within {self._asked.timeout_s:g} s")
        self._ended.append((index, scheduled, started, loop.time(), answer, self._read(answer)))
        self._on_end(len(self._ended))
        lost = answer.failure is not None and answer.failure[0] in {"refused", "unreachable", "reset"}
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        if self._lost_in_a_row >= _DEAD_AFTER:
            raise _EndpointGone

    def samples(self) -> tuple[RequestRecord, ...]:
        return tuple(sorted((self._sample(*ended) for ended in self._ended), key=lambda sample: sample.index))

    def _read(self, answer: StreamedResponse) -> Usage | None:
        """What the server counted; an answer of another length than was asked for is no success."""
        usage, asked = answer.finish(), (self._asked.input_tokens, self._asked.output_tokens)
        if usage is not None and (usage.prompt_tokens, usage.output_tokens) != asked:
            counted = f"{usage.prompt_tokens} in / {usage.output_tokens} out"
            answer.fail("wrong-length", f"{counted} where {asked[0]} / {asked[1]} were asked")
        return usage

    def _sample(
        self, index: int, scheduled: float, started: float, ended: float, answer: StreamedResponse, usage: Usage | None
    ) -> RequestRecord:
        failure = answer.failure or (None, "")
        return RequestRecord(
            index=index,
            scheduled_s=scheduled - self.origin,
            started_s=started - self.origin,
            ended_s=ended - self.origin,
            chunk_s=tuple(at - self.origin for at in answer.chunk_s),
            chunk_tokens=tuple(answer.chunk_tokens),
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
    asked: RequestShape,
    on_end: Callable[[int], None],
) -> LoadResult:
    """Send `requests[i]` at `times[i]` seconds; returns when all ended, on Ctrl-C, or when the endpoint is gone."""
    sender = _Sender(connections, asked, on_end=on_end)
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
    asked: RequestShape,
    on_end: Callable[[int], None],
) -> LoadResult:
    """Keep `concurrency` requests under way until all were sent."""
    sender = _Sender(connections, asked, on_end=on_end)
    loop = asyncio.get_running_loop()
    waiting = iter(enumerate(requests))

    async def one_after_another() -> None:
        for index, request in waiting:
            await sender.send(index, request, loop.time())

    async def streams(group: asyncio.TaskGroup) -> None:
        sender.origin = loop.time()
        for _ in range(concurrency):
            group.create_task(one_after_another())

    return await _run(sender, streams)


async def _run(sender: _Sender, load: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> LoadResult:
    ending = BenchEnding.COMPLETE
    with _undisturbed():
        try:
            async with asyncio.TaskGroup() as group:
                await load(group)
        except* _EndpointGone:
            ending = BenchEnding.ENDPOINT_DIED
        except* asyncio.CancelledError:
            ending = BenchEnding.INTERRUPTED
    if ending is BenchEnding.INTERRUPTED and (task := asyncio.current_task()) is not None:
        task.uncancel()  # Ctrl-C ends the load and not the program: what is finished is still to be reported
    return LoadResult(samples=sender.samples(), ending=ending)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection while the clock runs: a full pass over prepared requests takes tens of milliseconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
