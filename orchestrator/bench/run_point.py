"""One point of a measurement: fill the caches, read the counters, send the load, read them again."""

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
from orchestrator.bench.prompts import Prompt, arrival_times, prompts, warmup_prompts
from orchestrator.bench.result import Energy, Point, Price
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.engine.liveness import RANK_FIELD
from orchestrator.engine.metrics import Metrics
from orchestrator.engine.requests import Api, benchmark_body

_GAUGES_EVERY_S: Final = 1.0
_TURN_S: Final = 0.1

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class PointRunner:
    """Measures one point after the other on one endpoint; `say` is told what is going on, and how far it is."""

    workload: Workload
    text: tuple[int, ...]  # token ids of the text, where prompts are cut from one
    endpoint: Endpoint
    gpus: int | None
    price: Price | None
    read_energy: EnergyReader | None
    say: Callable[[str, str], None]

    async def warm_up(self, label: str) -> str:
        """Empty the prefix caches, then send one request of the measured shape for each prefix to each replica.

        sglang's cache belongs to a replica: with round robin a prefix sent once is known to one of them. Where the
        endpoint is sglang each warm-up request is pinned with `routed_dp_rank`; the measured ones are left to its
        balancer. Returns what was done, in words. Raises BenchError where the endpoint fails or does not keep to the
        token counts.
        """
        flushed = await self.endpoint.flush_cache()
        prefixes = await _in_turns(warmup_prompts(self.workload, label, self.text))
        replicas = self.endpoint.facts.replicas
        self.say(f"{label}: warm-up", f"{len(prefixes)} prefixes on {replicas} replica(s)")
        ranks: list[int | None] = list(range(replicas)) if replicas > 1 else [None]
        drives = await asyncio.gather(*(self._warm_replica(prefixes, rank) for rank in ranks))
        for drive in drives:
            check_answers(self.workload, drive.samples)
        where = f"on each of {replicas} replicas ({RANK_FIELD})" if replicas > 1 else "on the one replica known of"
        return f"{'caches flushed, ' if flushed else ''}each of {len(prefixes)} prefixes sent once {where}, full length"

    async def run_open(self, label: str, rate_rps: float) -> tuple[Point, LoadResult]:
        """Measure one offered rate."""
        count = self.workload.requests_at(rate_rps)
        requests = await self._requests(prompts(self.workload, label, count, self.text))
        times = arrival_times(self.workload, rate_rps, count)

        def shown(ended: int) -> None:
            self.say(f"{label} rps: {count} requests over {times[-1]:.0f} s", f"{ended}/{count} answered")

        def load() -> Awaitable[LoadResult]:
            return run_open_loop(self.endpoint.connections, requests, times, asked=self._asked, on_end=shown)

        shown(0)
        observed = await self._observe(label, load)
        return summarize_open_loop(observed, self.workload, rate_rps=rate_rps, price=self.price), observed.drive

    async def run_closed(self, label: str) -> tuple[Point, LoadResult]:
        """Measure a fixed number of requests at a time."""
        concurrency, count = self.workload.concurrency or 1, self.workload.requests
        requests = await self._requests(prompts(self.workload, label, count, self.text))

        def shown(ended: int) -> None:
            self.say(f"{label}: {count} requests, {concurrency} at a time", f"{ended}/{count} answered")

        def load() -> Awaitable[LoadResult]:
            connections, asked = self.endpoint.connections, self._asked
            return run_closed_loop(connections, requests, concurrency=concurrency, asked=asked, on_end=shown)

        shown(0)
        observed = await self._observe(label, load)
        return summarize_closed_loop(observed, self.workload, price=self.price), observed.drive

    async def _warm_replica(self, prefixes: list[Prompt], rank: int | None) -> LoadResult:
        requests = await self._requests(prefixes, replica=rank)
        connections, asked = self.endpoint.connections, self._asked
        return await run_closed_loop(connections, requests, concurrency=1, asked=asked, on_end=lambda _: None)

    @property
    def _asked(self) -> RequestShape:
        asked = self.workload
        return RequestShape(
            input_tokens=asked.input_tokens, output_tokens=asked.output_tokens, timeout_s=asked.timeout_s
        )

    async def _requests(self, each: Iterable[Prompt], *, replica: int | None = None) -> list[Request]:
        facts = self.endpoint.facts
        bodies = (
            benchmark_body(
                Api(facts.api),
                prompt.array,
                model=facts.served_model,
                tokens=self.workload.output_tokens,
                temperature=self.workload.temperature,
                rank=replica,
            )
            for prompt in each
        )
        return await _in_turns(self.endpoint.request(content) for content in bodies)

    async def _observe(self, label: str, load: Callable[[], Awaitable[LoadResult]]) -> Observation:
        """Send a load between two readings of all counters."""
        started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        before, energy_before = await self.endpoint.metrics(), _read(self.read_energy)
        gauges: list[Metrics] = []
        watch = asyncio.create_task(_watch(self.endpoint, gauges))
        try:
            drive = await load()
        finally:
            watch.cancel()
        energy_after, after = _read(self.read_energy), await self.endpoint.metrics()
        return Observation(
            label=label,
            started_at=started_at,
            drive=drive,
            server=server_counts(before, after, gauges) if before is not None and after is not None else None,
            energy=_energy(energy_before, energy_after, drive),
            reports_cache=self.endpoint.reports_cache,
            gpus=self.gpus,
        )


async def _in_turns(each: Iterable[Made]) -> list[Made]:
    """Make all of these; in between a signal that ends the measurement has its turn."""
    loop, made = asyncio.get_running_loop(), []
    turn = loop.time()
    for one in each:
        made.append(one)
        if loop.time() - turn >= _TURN_S:
            await asyncio.sleep(0)
            turn = loop.time()
    return made


def check_answers(workload: Workload, samples: tuple[RequestRecord, ...]) -> None:
    """Raise BenchError where a warm-up answer failed or is not of the exact length: no figure would mean anything."""
    for sample in samples:
        if sample.failure not in {None, "wrong-length"}:
            raise BenchError(f"warm-up failed: {sample.failure}", details=sample.failure_example, hint=_hint(sample))
        if sample.prompt_tokens != workload.input_tokens:
            raise BenchError(
                f"the endpoint counts {sample.prompt_tokens} prompt tokens where {workload.input_tokens} ids were sent",
                hint="it adds to or re-tokenizes the prompt; it cannot be measured with exact lengths",
            )
        if sample.output_tokens != workload.output_tokens:
            raise BenchError(
                f"the endpoint answered with {sample.output_tokens} tokens where {workload.output_tokens} were asked",
                hint="it ignores `ignore_eos`, or its context is too short; try --api generate with sglang",
            )


def _hint(sample: RequestRecord) -> str:
    if sample.failure == "timeout":
        return "raise `timeout_s` of the workload, or look at the server's log"
    if (sample.failure or "").startswith("http-4"):
        return "the endpoint refused the request: do `token_ids` and lengths of the workload fit the model?"
    return "look at the server's log; `deploy logs` shows it for one that `deploy up` started"


async def _watch(endpoint: Endpoint, gauges: list[Metrics]) -> None:
    while True:
        await asyncio.sleep(_GAUGES_EVERY_S)
        reading = await endpoint.metrics()
        if reading is None:
            return
        gauges.append(reading)


def _read(reader: EnergyReader | None) -> EnergyReading | str | None:
    """A reading, why there is none, or None where nobody asked."""
    try:
        return reader() if reader else None
    except EnergyUnavailableError as error:
        return str(error)


def _energy(before: EnergyReading | str | None, after: EnergyReading | str | None, drive: LoadResult) -> Energy | None:
    if isinstance(before, EnergyReading) and isinstance(after, EnergyReading):
        return energy_between(before, after, output_tokens=sum(sample.output_tokens or 0 for sample in drive.samples))
    reason = before if isinstance(before, str) else after
    return Energy(valid=False, source="none", reason=reason) if isinstance(reason, str) else None
