"""One point of a measurement: warm up, read the counters, send the load, read the counters again."""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from orchestrator.bench.aggregate import Observation, summarize_closed_loop, summarize_open_loop, summarize_replay
from orchestrator.bench.counters import server_counts
from orchestrator.bench.endpoint import Endpoint
from orchestrator.bench.energy import EnergyReader, EnergyReading, EnergyUnavailableError, energy_between
from orchestrator.bench.in_thread import in_thread
from orchestrator.bench.load_generator import (
    LoadResult,
    PlannedLoad,
    PlannedRequest,
    PlannedSession,
    Request,
    SinglePrompt,
    run_load,
)
from orchestrator.bench.prompts import Source, Words, arrival_times, prompts, warmup_prompts
from orchestrator.bench.record_file import RequestRecord
from orchestrator.bench.result import Energy, Point, Price, SessionLoad
from orchestrator.bench.sessions import SessionTokens, TreeSession, plan_closed, plan_open, session_key
from orchestrator.bench.traces.request import TraceRequest
from orchestrator.bench.traces.trace import SessionSource
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.engine.metrics import Metrics

_YIELD_INTERVAL_S: Final = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A finished warm-up of the point `label`; `seed` is the variable part of its prompts' seed."""

    label: str
    seed: str
    description: str


@dataclass(frozen=True, kw_only=True)
class PointRunner:
    """The runner of the points on one endpoint; `progress` receives the activity and its state."""

    workload: Workload
    text: Source  # token ids of the prompt text, or words
    endpoint: Endpoint
    gpus: int | None
    price: Price | None
    read_energy: EnergyReader | None
    progress: Callable[[str, str], None]
    source: SessionSource | None = None  # None: independent prompts
    session_header: str | None = None  # header with the session's name, for a gateway that routes by session
    salt: str = ""  # varies the prompts between runs if the caches cannot be flushed

    async def warm_up(self, label: str) -> WarmUp:
        """Flush the prefix caches, then send one request for each prefix to each DP rank.

        Each DP rank has its own cache, so warm-up requests are pinned if the engine supports it; the server balances
        measured requests. Raises BenchError if a request fails or its length differs from the request.
        """
        if self.source is not None:
            return await self._warm_up_sessions(label, self.source)
        flushed = await self.endpoint.flush_cache()
        seed = label if flushed else self.salt + label
        prefixes = await _collect_cooperatively(warmup_prompts(self.workload, seed, self.text))
        count, pinned, ranks = self._dp_ranks
        self.progress(f"{label}: warm-up", f"{len(prefixes)} prefixes on {count} DP rank(s)")
        planned = PlannedRequest(input_tokens=self.workload.input_tokens, output_tokens=self.workload.output_tokens)
        await self._warm(planned, [(prefix.fragments, rank) for prefix in prefixes for rank in ranks])
        target = f"each of {count} DP ranks ({pinned})" if pinned else "the only known DP rank"
        if count > 1 and not pinned:
            target = f"one of {count} DP ranks, chosen by the server"
        state = "caches flushed" if flushed else f"caches cannot be flushed: prompts varied by `{self.salt}`"
        return WarmUp(label, seed, f"{state}, each of {len(prefixes)} prefixes sent once to {target}, full length")

    @property
    def _dp_ranks(self) -> tuple[int, str | None, list[int | None]]:
        """The number of DP ranks, the field that pins a request to one, and the known ranks."""
        count = self.endpoint.facts.dp_ranks
        pinned = self.endpoint.rank_field if count > 1 else None
        return count, pinned, list(range(count)) if pinned else [None]

    async def _warm_up_sessions(self, label: str, source: SessionSource) -> WarmUp:
        """Send the shape of the first prompt, with other tokens, to each DP rank; then flush the prefix caches."""
        first = next(source.trees())[0]
        count, pinned, ranks = self._dp_ranks
        self.progress(f"{label}: warm-up", f"1 prompt on {count} DP rank(s)")
        ids = self._tokens(f"{self.salt}{label}/warm-up/", source).prompt(first, b"", 0)
        planned = PlannedRequest(input_tokens=first.input_tokens, output_tokens=first.output_tokens)
        await self._warm(planned, [((ids,), rank) for rank in ranks])
        flushed = await self.endpoint.flush_cache()
        target = f"each of {count} DP ranks ({pinned})" if pinned else "the server"
        emptied = "then caches flushed" if flushed else f"caches cannot be flushed: prompts varied by `{self.salt}`"
        count = self.workload.warmup_requests
        begin = f"measured after {count} requests of the load" if count else "measured from the first request"
        description = f"1 prompt of other tokens sent to {target}, {emptied}; {begin}"
        return WarmUp(label, "" if flushed else f"{self.salt}{label}/", description)

    async def _warm(self, planned: PlannedRequest, prompts: Sequence[tuple[Sequence[bytes], int | None]]) -> None:
        """Send prompts to their ranks, sequentially on each rank and in parallel across ranks."""

        def sessions(rank_number: int | None) -> list[SinglePrompt]:
            chosen = (prompt for prompt, rank in prompts if rank == rank_number)
            return [
                SinglePrompt(
                    planned, self.endpoint.request(item, self.workload, tokens=planned.output_tokens, rank=rank_number)
                )
                for item in chosen
            ]

        loads = (
            PlannedLoad(sessions=sessions(rank), concurrency=1, timeout_s=self.workload.timeout_s)
            for rank in dict.fromkeys(rank for _, rank in prompts)
        )
        for result in await asyncio.gather(*(run_load(self.endpoint.connections, load) for load in loads)):
            check_warmup(planned, result.records)

    async def run_open(self, warm: WarmUp, rate_rps: float) -> tuple[Point, LoadResult]:
        """Measure one offered rate."""
        label, count = warm.label, self.workload.requests_at(rate_rps)
        times = arrival_times(self.workload, rate_rps, count)
        sessions = await self._independent(warm.seed, count, times)
        activity = f"{label} rps: {count} requests over {times[-1]:.0f} s"
        observed = await self._observe(label, self._load(sessions, activity, count))
        point = summarize_open_loop(observed, self.workload, rate_rps=rate_rps, price=self.price)
        return self._finish(point, observed.load_result)

    async def run_closed(self, warm: WarmUp) -> tuple[Point, LoadResult]:
        """Measure the fixed concurrency of the workload."""
        label = warm.label
        concurrency, count = self.workload.concurrency or 1, self.workload.requests
        if self.source is None:
            load = self._load(
                await self._independent(warm.seed, count), f"{label}: {count} requests, {concurrency} at a time", count
            )
            observed = await self._observe(label, load)
        else:
            plan = partial(plan_closed, max_delay_s=self.workload.max_think_time_s)
            observed = await self._replay(warm, self.source, plan, f"{concurrency} sessions at a time", None)
        point = summarize_closed_loop(observed, self.workload, price=self.price)
        return self._finish(point, observed.load_result)

    async def run_recorded(self, warm: WarmUp, speed: float) -> tuple[Point, LoadResult]:
        """Measure the recorded arrivals of a trace at one speed."""
        assert self.source is not None  # noqa: S101 - only a trace has speeds
        plan = partial(plan_open, speed=speed, max_delay_s=self.workload.max_think_time_s)
        totals = self.source.totals
        seconds = max((totals.last_arrival_s or 0.0) / speed, 1.0)
        observed = await self._replay(warm, self.source, plan, f"arrivals over {seconds:.0f} s", speed)
        rate = totals.requests / seconds
        point = summarize_replay(observed, self.workload, rate_rps=rate, price=self.price)
        return self._finish(point, observed.load_result)

    async def _replay(
        self,
        warm: WarmUp,
        source: SessionSource,
        plan: Callable[[TraceRequest], PlannedRequest],
        description: str,
        speed: float | None,
    ) -> Observation:
        label = warm.label
        tokens = self._tokens(warm.seed, source)
        sessions = (TreeSession(tree, tokens, self._session_request, plan) for tree in source.trees())
        count = source.totals.requests
        observed = await self._observe(label, self._load(sessions, f"{label}: {count} requests, {description}", count))
        started = Counter(record.is_subagent for record in observed.load_result.records if record.position == 0)
        facts = SessionLoad(
            sessions=started[False],
            subagents=started[True],
            warmup_requests=self.workload.warmup_requests,
            dropped_requests=source.dropped_requests,
            next_prompts=_next_prompts(source, tokens),
            drawn_share=tokens.drawn_answers / max(tokens.answers, 1),
            speed=speed,
        )
        return replace(observed, sessions=facts)

    def _tokens(self, seed: str, source: SessionSource) -> SessionTokens:
        text = () if isinstance(self.text, Words) else self.text  # prompts of sessions are never words
        return SessionTokens(self.workload, seed, text, block_tokens=source.totals.block_tokens)

    def _session_request(self, ids: bytes, planned: PlannedRequest, session: str) -> Request:
        headers = {self.session_header: session_key(session)} if self.session_header else {}
        return self.endpoint.request(
            (ids,), self.workload, tokens=planned.output_tokens, returns_ids=planned.keeps_answer, headers=headers
        )

    async def _independent(self, seed: str, count: int, times: Sequence[float] | None = None) -> list[SinglePrompt]:
        """Build a point's independent prompts before its load starts, so that no request is delayed."""
        drawn = prompts(self.workload, seed, count, self.text)
        planned = PlannedRequest(input_tokens=self.workload.input_tokens, output_tokens=self.workload.output_tokens)
        return await _collect_cooperatively(
            SinglePrompt(
                planned if times is None else replace(planned, arrival_s=times[index]),
                self.endpoint.request(item.fragments, self.workload),
            )
            for index, item in enumerate(drawn)
        )

    def _load(self, sessions: Iterable[PlannedSession], activity: str, count: int) -> PlannedLoad:
        def on_end(ended: int) -> None:
            self.progress(activity, f"{ended}/{count} completed")

        on_end(0)
        return PlannedLoad(
            sessions=sessions,
            concurrency=self.workload.concurrency if self.workload.load == "closed" else None,
            timeout_s=self.workload.timeout_s,
            on_end=on_end,
            warmup_requests=self.workload.warmup_requests,
            duration_s=self.workload.duration_s if self.source is not None else None,
        )

    def _finish(self, point: Point, load_result: LoadResult) -> tuple[Point, LoadResult]:
        """Return a point with its load; a client with its own figures adds them."""
        return point, load_result

    async def _send(self, label: str, load: PlannedLoad) -> LoadResult:  # noqa: ARG002 - for a client with files
        return await run_load(self.endpoint.connections, load)

    async def _observe(self, label: str, load: PlannedLoad) -> Observation:
        """Send a load, and read all counters at the start of the measured window and after the load."""
        started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        watched = _Window(self.endpoint, self.read_energy)
        if not load.warmup_requests:
            await watched.begin()
        try:
            load_result = await self._send(label, replace(load, on_measured=watched.begin_soon))
        finally:
            watched.close()
        energy_after, after = await _read_energy(self.read_energy), await self.endpoint.metrics()
        before = watched.before
        return Observation(
            label=label,
            started_at=started_at,
            load_result=load_result,
            server=server_counts(before, after) if before is not None and after is not None else None,
            energy=_energy_used(watched.energy, energy_after, load_result),
            reports_cache=self.endpoint.reports_cache,
            gpus=self.gpus,
        )


class _Window:
    """The counters at the start of the measured window."""

    def __init__(self, endpoint: Endpoint, read_energy: EnergyReader | None) -> None:
        self.before: Metrics | None = None
        self.energy: EnergyReading | str | None = None
        self._endpoint = endpoint
        self._read_energy = read_energy
        self._started = False
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read the counters."""
        self._started = True
        self.before, self.energy = await self._endpoint.metrics(), await _read_energy(self._read_energy)

    def begin_soon(self) -> None:
        """Read the counters while the load runs, unless they were read before it."""
        if not self._started:
            self._task = asyncio.create_task(self.begin())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _next_prompts(source: SessionSource, tokens: SessionTokens) -> str:
    if source.format == "weka":
        return "the recorded blocks"
    if tokens.drawn_answers:
        return f"drawn tokens in place of {tokens.drawn_answers} answers whose token ids the endpoint did not return"
    return "the recorded blocks" if source.totals.continued == 0 else "the answers of the server, and new tokens"


async def _collect_cooperatively(items: Iterable[Item]) -> list[Item]:
    """Collect `items`, and yield to the event loop regularly so that signals are handled."""
    loop, collected = asyncio.get_running_loop(), []
    last_yield = loop.time()
    for item in items:
        collected.append(item)
        if loop.time() - last_yield >= _YIELD_INTERVAL_S:
            await asyncio.sleep(0)
            last_yield = loop.time()
    return collected


def check_warmup(planned: PlannedRequest, records: Collection[RequestRecord]) -> None:
    """Raise BenchError if a warm-up request failed or has the wrong length, which would invalidate all metrics."""
    for record in records:
        if record.failure not in {None, "wrong-length"}:
            raise BenchError(f"warm-up failed: {record.failure}", details=record.failure_example, hint=_hint(record))
        if record.prompt_tokens != planned.input_tokens:
            raise BenchError(
                f"the endpoint counted {record.prompt_tokens} prompt tokens; {planned.input_tokens} were sent",
                hint="an endpoint that changes or re-tokenizes prompts cannot be measured",
            )
        if record.output_tokens != planned.output_tokens:
            raise BenchError(
                f"the endpoint returned {record.output_tokens} tokens; {planned.output_tokens} were requested",
                hint="it ignores `ignore_eos`, or its context is too short; for sglang, try `--api generate`",
            )


def _hint(record: RequestRecord) -> str:
    if record.failure == "timeout":
        return "increase `timeout_s` of the workload, or check the server log"
    if (record.failure or "").startswith("http-4"):
        return "check that the prompts fit the model: the lengths of the workload, and its `token_ids`"
    return "check the server log, for example with `deploy logs NAME`"


async def _read_energy(reader: EnergyReader | None) -> EnergyReading | str | None:
    """Return an energy reading, the reason for its absence, or None without a reader; requests continue meanwhile."""
    try:
        return await in_thread(reader) if reader else None
    except EnergyUnavailableError as error:
        return str(error)


def _energy_used(
    before: EnergyReading | str | None, after: EnergyReading | str | None, load_result: LoadResult
) -> Energy | None:
    if isinstance(before, EnergyReading) and isinstance(after, EnergyReading):
        return energy_between(
            before, after, output_tokens=sum(record.output_tokens or 0 for record in load_result.records)
        )
    reason = before if isinstance(before, str) else after
    return Energy(valid=False, source="none", reason=reason) if isinstance(reason, str) else None
