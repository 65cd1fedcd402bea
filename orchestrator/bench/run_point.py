"""One point of a measurement: warm up, read the counters, send the load, read the counters again."""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from orchestrator.bench.aggregate import Observation, summarize_closed_loop, summarize_open_loop
from orchestrator.bench.counters import server_counts
from orchestrator.bench.endpoint import Endpoint
from orchestrator.bench.energy import EnergyReader, EnergyReading, EnergyUnavailableError, energy_between
from orchestrator.bench.load_generator import (
    LoadResult,
    Request,
    RequestRecord,
    RequestShape,
    run_closed_loop,
    run_open_loop,
)
from orchestrator.bench.prompts import Prompt, Source, arrival_times, prompts, warmup_prompts
from orchestrator.bench.result import Energy, Point, Price
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.engine.metrics import Metrics

_GAUGE_INTERVAL_S: Final = 1.0
_YIELD_INTERVAL_S: Final = 0.1

Item = TypeVar("Item")


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
    salt: str = ""  # varies the prompts between runs on an endpoint whose cache cannot be flushed

    async def warm_up(self, label: str) -> str:
        """Flush the prefix caches, then send one request for each prefix to each replica; return a description.

        Each replica has its own cache, so warm-up requests are pinned where the engine can do it; measured requests are
        balanced by the server. Raises BenchError if a request fails or has a length other than requested.
        """
        flushed = await self.endpoint.flush_cache()
        prefixes = await _collect_cooperatively(warmup_prompts(self.workload, self.salt + label, self.text))
        replicas = self.endpoint.facts.replicas
        pinned = self.endpoint.rank_field if replicas > 1 else None
        self.progress(f"{label}: warm-up", f"{len(prefixes)} prefixes on {replicas} replica(s)")
        ranks: list[int | None] = list(range(replicas)) if pinned else [None]
        load_results = await asyncio.gather(*(self._warm_replica(prefixes, rank) for rank in ranks))
        for load_result in load_results:
            check_warmup(self.workload, load_result.records)
        target = f"each of {replicas} replicas ({pinned})" if pinned else "the only known replica"
        if replicas > 1 and not pinned:
            target = f"one of {replicas} replicas, chosen by the server"
        prefix = "caches flushed, " if flushed else ""
        prefix += f"caches cannot be flushed: prompts varied by `{self.salt}`, " if self.salt else ""
        return f"{prefix}each of {len(prefixes)} prefixes sent once to {target}, full length"

    async def run_open(self, label: str, rate_rps: float) -> tuple[Point, LoadResult]:
        """Measure one offered rate."""
        count = self.workload.requests_at(rate_rps)
        requests = await self._requests(prompts(self.workload, self.salt + label, count, self.text))
        times = arrival_times(self.workload, rate_rps, count)

        def on_end(ended: int) -> None:
            self.progress(f"{label} rps: {count} requests over {times[-1]:.0f} s", f"{ended}/{count} completed")

        def load() -> Awaitable[LoadResult]:
            return run_open_loop(self.endpoint.connections, requests, times, shape=self._shape, on_end=on_end)

        on_end(0)
        observed = await self._observe(label, load)
        return summarize_open_loop(observed, self.workload, rate_rps=rate_rps, price=self.price), observed.load_result

    async def run_closed(self, label: str) -> tuple[Point, LoadResult]:
        """Measure the fixed concurrency of the workload."""
        concurrency, count = self.workload.concurrency or 1, self.workload.requests
        requests = await self._requests(prompts(self.workload, self.salt + label, count, self.text))

        def on_end(ended: int) -> None:
            self.progress(f"{label}: {count} requests, {concurrency} at a time", f"{ended}/{count} completed")

        def load() -> Awaitable[LoadResult]:
            connections = self.endpoint.connections
            return run_closed_loop(connections, requests, concurrency=concurrency, shape=self._shape, on_end=on_end)

        on_end(0)
        observed = await self._observe(label, load)
        return summarize_closed_loop(observed, self.workload, price=self.price), observed.load_result

    async def _warm_replica(self, prefixes: list[Prompt], rank: int | None) -> LoadResult:
        requests = await self._requests(prefixes, replica=rank)
        connections = self.endpoint.connections
        return await run_closed_loop(connections, requests, concurrency=1, shape=self._shape, on_end=lambda _: None)

    @property
    def _shape(self) -> RequestShape:
        return RequestShape(
            input_tokens=self.workload.input_tokens,
            output_tokens=self.workload.output_tokens,
            timeout_s=self.workload.timeout_s,
        )

    async def _requests(self, prompts: Iterable[Prompt], *, replica: int | None = None) -> list[Request]:
        requests = (self.endpoint.request(each.fragments, self.workload, rank=replica) for each in prompts)
        return await _collect_cooperatively(requests)

    async def _observe(self, label: str, load: Callable[[], Awaitable[LoadResult]]) -> Observation:
        """Send a load, and read all counters before and after it."""
        started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        before, energy_before = await self.endpoint.metrics(), _read_energy(self.read_energy)
        gauges: list[Metrics] = []
        poller = asyncio.create_task(_poll_metrics(self.endpoint, gauges))
        try:
            load_result = await load()
        finally:
            poller.cancel()
        energy_after, after = _read_energy(self.read_energy), await self.endpoint.metrics()
        return Observation(
            label=label,
            started_at=started_at,
            load_result=load_result,
            server=server_counts(before, after, gauges) if before is not None and after is not None else None,
            energy=_energy_used(energy_before, energy_after, load_result),
            reports_cache=self.endpoint.reports_cache,
            gpus=self.gpus,
        )


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


def check_warmup(workload: Workload, records: tuple[RequestRecord, ...]) -> None:
    """Raise BenchError if a warm-up request failed or has not the exact length, which would invalidate all metrics."""
    for record in records:
        if record.failure not in {None, "wrong-length"}:
            raise BenchError(f"warm-up failed: {record.failure}", details=record.failure_example, hint=_hint(record))
        if record.prompt_tokens != workload.input_tokens:
            raise BenchError(
                f"the endpoint counted {record.prompt_tokens} prompt tokens; {workload.input_tokens} were sent",
                hint="an endpoint that changes or re-tokenizes prompts cannot be measured",
            )
        if record.output_tokens != workload.output_tokens:
            raise BenchError(
                f"the endpoint returned {record.output_tokens} tokens; {workload.output_tokens} were requested",
                hint="it ignores `ignore_eos`, or its context is too short; for sglang, try `--api generate`",
            )


def _hint(record: RequestRecord) -> str:
    if record.failure == "timeout":
        return "increase `timeout_s` of the workload, or check the server log"
    if (record.failure or "").startswith("http-4"):
        return "check that the prompts fit the model: the lengths of the workload, and its `token_ids`"
    return "check the server log, for example with `deploy logs`"


async def _poll_metrics(endpoint: Endpoint, gauges: list[Metrics]) -> None:
    while True:
        await asyncio.sleep(_GAUGE_INTERVAL_S)
        reading = await endpoint.metrics()
        if reading is None:
            return
        gauges.append(reading)


def _read_energy(reader: EnergyReader | None) -> EnergyReading | str | None:
    """Return an energy reading, the reason why there is none, or None without a reader."""
    try:
        return reader() if reader else None
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
