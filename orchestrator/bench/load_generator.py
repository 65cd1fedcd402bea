"""The load generator: an open or a closed loop over sessions; an independent prompt is a session of one request.

Open loop: each request is sent at its planned time. A slow or failed response never delays an arrival (no coordinated
omission), and latency counts from the planned time. Closed loop: a fixed number of sessions runs, each with its
subagents; this hides queueing. A request without a planned arrival waits for the requests before it, then for a delay.
"""

import asyncio
import gc
from array import array
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, Protocol

from orchestrator.bench.connection import Connections
from orchestrator.bench.record_file import RecordFile, RequestRecord
from orchestrator.bench.result import EndReason
from orchestrator.bench.streamed_response import StreamedResponse
from orchestrator.core.errors import DeployError
from orchestrator.engine.sse import Usage

Request = tuple[bytes, ...]

_LEAD_S: Final = 0.05  # from the start of the clock to the first arrival
_AHEAD_S: Final = 0.25  # from the preparation of a request to its planned time
_POLL_S: Final = 1.0  # in a load with a duration
_MAX_CONSECUTIVE_LOSSES: Final = 5  # this many failed connections in a row mean a dead endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of a session: its exact lengths in tokens, and its planned time."""

    input_tokens: int
    output_tokens: int
    session: str = ""
    position: int = 0  # in its session
    is_subagent: bool = False
    arrival_s: float | None = None  # after the start; None: `delay_s` after the requests in `after` have ended
    after: tuple[int, ...] = ()  # indices of earlier requests of the plan
    delay_s: float = 0.0
    keeps_answer: bool = False  # a later prompt contains the answer


class PlannedSession(Protocol):
    """The requests of a session and its subagents."""

    @property
    def requests(self) -> Sequence[PlannedRequest]:
        """The requests; each follows the requests in its `after`."""

    def build(self, index: int) -> Request:
        """Return a request ready to send; the requests in its `after` have ended."""

    def answered(self, index: int, ids: bytes | None) -> None:
        """Receive an answer's token ids, as the inside of a JSON array: empty after a failure, None if not sent."""


@dataclass(frozen=True, slots=True)
class SinglePrompt:
    """A session of one request that is already built."""

    planned: PlannedRequest
    request: Request

    @property
    def requests(self) -> Sequence[PlannedRequest]:
        """The single request."""
        return (self.planned,)

    def build(self, index: int) -> Request:  # noqa: ARG002 - part of the protocol
        """Return the request."""
        return self.request

    def answered(self, index: int, ids: bytes | None) -> None:
        """Ignore the answer: no prompt continues it."""


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """The finished requests of one point, in order, without the warm-up."""

    records: Collection[RequestRecord]
    end_reason: EndReason


class _EndpointStopped(Exception):  # noqa: N818 - an end, not an error
    """The endpoint is dead."""


class _Sender:
    """The sender of one point: records finished requests and detects a dead endpoint."""

    def __init__(self, connections: Connections, load: "PlannedLoad") -> None:
        self._connections = connections
        self._load = load
        self.records = RecordFile()  # requests that ended in the measured window
        self._finished = 0
        self._sent = 0
        self._consecutive_losses = 0
        self.start = 0.0
        self.measured_from = 0.0

    def begin(self, start: float) -> None:
        """Start the clock and, without a warm-up, the measured window."""
        self.start = self.measured_from = start
        if not self._load.warmup_requests:
            self._load.on_measured()

    @property
    def is_over(self) -> bool:
        """Whether the load has ended, so that no further request is sent."""
        if (duration := self._load.duration_s) is None or not self._measures:
            return False
        return asyncio.get_running_loop().time() >= self.measured_from + duration

    @property
    def _measures(self) -> bool:
        return self._finished >= self._load.warmup_requests

    async def play(self, session: PlannedSession) -> None:
        """Send the requests of a session, each after its predecessors have ended; return after the last response."""
        requests, loop = session.requests, asyncio.get_running_loop()
        if len(requests) == 1:
            await self._play_one(session, 0, loop.time())
            return
        waits = [len(request.after) for request in requests]
        followers: list[list[int]] = [[] for _ in requests]
        for index, item in enumerate(requests):
            for before in item.after:
                followers[before].append(index)

        async def play_from(index: int) -> None:
            if not await self._play_one(session, index, loop.time()):
                return
            for follower in followers[index]:
                waits[follower] -= 1
                if not waits[follower]:
                    group.create_task(play_from(follower))

        async with asyncio.TaskGroup() as group:
            firsts = ((request.arrival_s or 0.0, index) for index, request in enumerate(requests) if not request.after)
            for arrival, first in sorted(firsts):
                if await self.wait_until(self.start + arrival - _AHEAD_S):
                    group.create_task(play_from(first))

    async def _play_one(self, session: PlannedSession, index: int, ready: float) -> bool:
        """Send a request at its time; its predecessors ended at `ready`. Return whether it was sent."""
        planned, loop = session.requests[index], asyncio.get_running_loop()
        arrival = None if planned.arrival_s is None else self.start + planned.arrival_s
        if arrival is not None and planned.after:
            arrival = max(arrival, ready)
        at = ready + planned.delay_s if arrival is None else arrival
        if not await self.wait_until(at - _AHEAD_S):
            return False
        request = session.build(index)
        if not await self.wait_until(at):
            return False
        session.answered(index, await self.send(planned, request, loop.time() if arrival is None else arrival))
        return True

    async def wait_until(self, at: float) -> bool:
        """Sleep until `at`, or until the load is over; return whether the load continues."""
        loop = asyncio.get_running_loop()
        while not self.is_over and (wait := at - loop.time()) > 0:  # noqa: ASYNC110 - the warm-up sets its end
            await asyncio.sleep(wait if self._load.duration_s is None else min(wait, _POLL_S))
        return not self.is_over

    async def send(self, planned: PlannedRequest, request: Request, scheduled: float) -> bytes | None:
        """Send one request; return its answer's token ids if the plan needs them. See `PlannedSession.answered`."""
        loop, index = asyncio.get_running_loop(), self._sent
        self._sent += 1
        response = StreamedResponse(planned.output_tokens, keep_ids=planned.keeps_answer)
        started = loop.time()
        try:
            async with asyncio.timeout_at(max(scheduled, started) + self._load.timeout_s):
                await self._connections.send(request, response)
        except TimeoutError:
            response.fail("timeout", f"no complete response within {self._load.timeout_s:g} s")
        usage = _check_length(planned, response)
        self._finish(index, planned, (scheduled, started, loop.time()), response, usage)
        connection_lost = response.failure is not None and response.failure[0] in {"refused", "unreachable", "reset"}
        self._consecutive_losses = self._consecutive_losses + 1 if connection_lost else 0
        if self._consecutive_losses >= _MAX_CONSECUTIVE_LOSSES:
            raise _EndpointStopped
        return response.answer_ids if response.failure is None else b""

    def _finish(
        self,
        index: int,
        planned: PlannedRequest,
        times: tuple[float, float, float],
        response: StreamedResponse,
        usage: Usage | None,
    ) -> None:
        self._finished += 1
        self._load.on_end(self._finished)
        if self._finished <= self._load.warmup_requests:
            if self._measures:
                self.measured_from = times[2]
                self._load.on_measured()
            return
        failure, example = response.failure or (None, "")
        scheduled, started, ended = (moment - self.measured_from for moment in times)
        record = RequestRecord(
            index=index,
            scheduled_s=scheduled,
            started_s=started,
            ended_s=ended,
            chunk_s=array("d", [at - self.measured_from for at in response.chunk_s]),
            chunk_tokens=_complete(response.chunk_tokens),
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            finish_reason=usage.finish_reason if usage else None,
            failure=failure,
            failure_example=example,
            session=planned.session,
            position=planned.position,
            is_subagent=planned.is_subagent,
        )
        self.records.add(record)


def _complete(counts: Sequence[int | None]) -> "array[int]":
    """Return cumulative counts; empty if any count is missing."""
    complete = array("i", [count for count in counts if count is not None])
    return complete if len(complete) == len(counts) else array("i")


def _check_length(planned: PlannedRequest, response: StreamedResponse) -> Usage | None:
    """Return the server's token counts; fail a response whose length differs from the request."""
    usage, requested = response.finish(), (planned.input_tokens, planned.output_tokens)
    if usage is not None and (usage.prompt_tokens, usage.output_tokens) != requested:
        counts = f"{usage.prompt_tokens} in / {usage.output_tokens} out"
        response.fail("wrong-length", f"{counts} tokens; requested {requested[0]} in / {requested[1]} out")
    return usage


@dataclass(frozen=True, kw_only=True)
class PlannedLoad:
    """The load of one point: its sessions, and how many run at a time (closed loop) or arrive (open loop)."""

    sessions: Iterable[PlannedSession]  # a list means that all requests are built
    concurrency: int | None  # running sessions; None: an open loop, sessions in the order of their first arrivals
    timeout_s: float
    on_end: Callable[[int], None] = lambda _: None  # called with the number of finished requests
    warmup_requests: int = 0  # the first requests to end; the measured window follows
    on_measured: Callable[[], None] = lambda: None  # called when the measured window begins
    duration_s: float | None = None  # length of the measured window; later requests are not sent


async def run_load(connections: Connections, load: PlannedLoad) -> LoadResult:
    """Send a load; return when all requests ended, on Ctrl-C, or when the endpoint dies."""
    sender = _Sender(connections, load)
    loop = asyncio.get_running_loop()
    prepared = isinstance(load.sessions, list)  # otherwise requests are built during the load
    pending = iter(load.sessions)
    first_session = list(islice(pending, 1))  # read before the clock starts: indexing a long trace takes seconds
    pending = chain(first_session, pending)

    async def play_arrivals(group: asyncio.TaskGroup) -> None:
        sender.begin(loop.time() + _LEAD_S)
        for session in pending:
            first = session.requests[0].arrival_s or 0.0
            if not await sender.wait_until(sender.start + first - (0.0 if prepared else _AHEAD_S)):
                return
            group.create_task(sender.play(session))

    async def play_sequentially() -> None:
        for session in pending:
            if sender.is_over:
                return
            await sender.play(session)

    async def play_lanes(group: asyncio.TaskGroup) -> None:
        sender.begin(loop.time())
        for _ in range(load.concurrency or 1):
            group.create_task(play_sequentially())

    return await _run(sender, play_arrivals if load.concurrency is None else play_lanes, gc_off=prepared)


async def _run(sender: _Sender, load: Callable[[asyncio.TaskGroup], Awaitable[None]], *, gc_off: bool) -> LoadResult:
    ending, failures = EndReason.COMPLETE, list[Exception]()
    with _paused_gc(off=gc_off):
        try:
            async with asyncio.TaskGroup() as group:
                await load(group)
        except* _EndpointStopped:
            ending = EndReason.ENDPOINT_DIED
        except* asyncio.CancelledError:
            ending = EndReason.INTERRUPTED
        except* (DeployError, OSError) as group:  # a trace that has changed, a full disk
            failures = _leaves(group)
    if failures:
        raise failures[0]
    if ending is EndReason.INTERRUPTED and (task := asyncio.current_task()) is not None:
        task.uncancel()  # Ctrl-C ends only the load: the program still reports finished requests
    return LoadResult(records=sender.records, end_reason=ending)


def _leaves(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        return [leaf for exception in error.exceptions for leaf in _leaves(exception)]
    return [error]


@contextmanager
def _paused_gc(*, off: bool) -> Iterator[None]:
    """Exempt existing objects from garbage collection: a full pass over prepared requests takes tens of milliseconds.

    With all requests prepared, collection is `off`; sessions built during the load need it.
    """
    gc.freeze()
    if off:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
