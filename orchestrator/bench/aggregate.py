"""The metrics of one point, computed from its request records; units as in `bench/result.py`. Pure."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.load_generator import LoadResult
from orchestrator.bench.record_file import RequestRecord
from orchestrator.bench.result import (
    CacheHits,
    Distribution,
    EndReason,
    Energy,
    FailureCount,
    Latency,
    Point,
    Price,
    ServerCounts,
    SessionLoad,
    Throughput,
)
from orchestrator.bench.steady_state import judge_sustained, steady_window, ttft_growth
from orchestrator.bench.workload import SustainedLimits, Workload

_DIGITS: Final = 5  # decimals of gaps in seconds, so that millions of gaps have few distinct lengths
_MAX_DIFFERENT: Final = 4096  # distinct values
_MAX_BITS: Final = 12  # precision of rounded values


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The raw data of one point: request records, server counters, energy."""

    label: str
    started_at: str
    load_result: LoadResult
    server: ServerCounts | None
    energy: Energy | None
    reports_cache: bool
    gpus: int | None
    sessions: SessionLoad | None = None


def summarize_open_loop(observed: Observation, workload: Workload, *, rate_rps: float, price: Price | None) -> Point:
    """Compute the metrics of one offered rate and judge them against the SLO of the workload."""
    records = observed.load_result.records
    window = steady_window(records)
    steady = (
        throughput(records, start_s=window.begin_s, end_s=window.end_s, gpus=observed.gpus)
        if window and window.has_rate
        else None
    )
    point = replace(
        _point(observed, workload, arrivals=workload.arrivals),
        offered_rps=rate_rps,
        achieved_rps=window.completed / steady.seconds if window and steady else None,
        completion_ratio=window.completion_ratio if window else None,
        ttft_growth_s_per_s=ttft_growth(records),
        window=steady,
    )
    point = replace(
        point, usd_per_million_output_tokens=usd_per_million(steady or point.full_run, price, observed.gpus)
    )
    if point.end_reason is EndReason.INTERRUPTED:
        return replace(point, not_sustained_because=("interrupted",))
    sustained, reasons = judge_sustained(point, records, window, workload.slo)
    return replace(point, sustained=sustained, not_sustained_because=reasons)


def summarize_closed_loop(observed: Observation, workload: Workload, *, price: Price | None) -> Point:
    """Compute the metrics of one concurrency."""
    point = replace(_point(observed, workload, arrivals="closed"), window=_full_lanes(observed))
    cost = usd_per_million(point.window or point.full_run, price, observed.gpus)
    return replace(point, concurrency=workload.concurrency, usd_per_million_output_tokens=cost)


def summarize_replay(observed: Observation, workload: Workload, *, rate_rps: float, price: Price | None) -> Point:
    """Compute the metrics of a trace at one speed, without a verdict: its mean rate does not describe its load."""
    point = _point(observed, workload, arrivals="recorded")
    cost = usd_per_million(point.full_run, price, observed.gpus)
    return replace(point, offered_rps=rate_rps, usd_per_million_output_tokens=cost)


def _full_lanes(observed: Observation) -> Throughput | None:
    """Return the throughput up to the start of the last session; after it, fewer sessions run.

    None for independent prompts, or if this time is less than half of the run.
    """
    records = observed.load_result.records
    if observed.sessions is None:
        return None
    starts = (record.started_s for record in records if record.position == 0 and not record.is_subagent)
    last, end = max(starts, default=0.0), _end(records)
    return throughput(records, start_s=0.0, end_s=last, gpus=observed.gpus) if last > end / 2 else None


def _point(observed: Observation, workload: Workload, *, arrivals: str) -> Point:
    records, server = observed.load_result.records, observed.server
    end, done = _end(records), Counter[str]()
    for record in _done(records):
        done.update(
            requests=1,
            in_time=_within(record, workload.slo),
            input_tokens=_prompt_tokens(record),
            output_tokens=_output_tokens(record),
        )
    return Point(
        label=observed.label,
        arrivals=arrivals,
        end_reason=observed.load_result.end_reason,
        started_at=observed.started_at,
        requests=len(records),
        succeeded=done["requests"],
        success_share=done["requests"] / len(records) if records else 0.0,
        failures=failures(records),
        input_tokens=done["input_tokens"],
        output_tokens=done["output_tokens"],
        goodput_rps=done["in_time"] / end if end else None,
        full_run=throughput(records, start_s=0.0, end_s=end, gpus=observed.gpus) if end else None,
        latency=latency(records),
        send_lag_s=distribution(max(0.0, record.started_s - record.scheduled_s) for record in records),
        cache=cache_hits(
            records,
            target_share=None if workload.has_sessions else workload.cache_hit_rate,
            absent_is_zero=observed.reports_cache,
            server=server,
        ),
        sessions=observed.sessions,
        server=server,
        energy=observed.energy,
    )


def _within(record: RequestRecord, slo: SustainedLimits) -> bool:
    """Return whether a request meets the limits; a single token has no time per token."""
    measured = (
        (record.chunk_s[0] - record.scheduled_s, slo.ttft_p95_s),
        (_tpot(record) if _output_tokens(record) > 1 else 0.0, slo.tpot_p95_s),
        (record.ended_s - record.scheduled_s, slo.e2e_p95_s),
    )
    return all(limit is None or seconds <= limit for seconds, limit in measured)


def _end(records: Collection[RequestRecord]) -> float:
    return max((record.ended_s for record in records), default=0.0)


def usd_per_million(throughput: Throughput | None, price: Price | None, gpus: int | None) -> float | None:
    """Return US dollars per million output tokens; None if throughput, price or number of GPUs is unknown."""
    if throughput is None or price is None or gpus is None:
        return None
    return metrics.usd_per_million_tokens(price.usd_per_gpu_hour * gpus, throughput.output_tok_per_s)


def percentile(ordered: Sequence[float], quantile: float) -> float:
    """Return a quantile (0 to 1) of ascending values, linearly interpolated (Hyndman and Fan type 7, as in numpy)."""
    position = (len(ordered) - 1) * quantile
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Iterable[float]) -> Distribution | None:
    """Return the distribution of `values`, or None if there are none. See `_Values`."""
    collected = _Values()
    for value in values:
        collected.add(value)
    return collected.distribution() if collected else None


class _Values(Sequence[float]):
    """Ascending values, stored as counts of distinct values, so that memory does not grow with their number.

    More than `_MAX_DIFFERENT` distinct values are rounded, by at most 0.1 % if the largest is 16 times the smallest;
    mean and maximum stay exact.
    """

    def __init__(self) -> None:
        self._counts = Counter[float]()
        self._bits = 0  # precision of rounded values; 0: exact
        self._count, self._sum, self._max = 0, 0.0, -math.inf
        self._ascending: list[float] = []
        self._ends: list[int] = []  # for each distinct value, the position after its last occurrence

    def add(self, value: float, times: int = 1) -> None:
        """Add a value, `times` times."""
        self._count += times
        self._sum += value * times
        self._max = max(self._max, value)
        self._counts[self._rounded(value)] += times
        while len(self._counts) > _MAX_DIFFERENT:
            self._bits = self._bits - 1 if self._bits else _MAX_BITS
            counts, self._counts = self._counts, Counter()
            for item, count in counts.items():
                self._counts[self._rounded(item)] += count

    def distribution(self) -> Distribution:
        """Return the distribution of at least one value."""
        self._ascending = sorted(self._counts)
        self._ends = list(accumulate(self._counts[item] for item in self._ascending))
        p50, p90, p95, p99 = (percentile(self, share) for share in (0.50, 0.90, 0.95, 0.99))
        mean = self._sum / self._count
        return Distribution(count=self._count, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=self._max)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> float:  # type: ignore[override]
        return min(self._ascending[bisect_right(self._ends, index)], self._max)

    def _rounded(self, value: float) -> float:
        if not self._bits:
            return value
        fraction, exponent = math.frexp(value)
        return math.ldexp(round(math.ldexp(fraction, self._bits)), exponent - self._bits)


def latency(records: Collection[RequestRecord]) -> Latency | None:
    """Compute the latencies of the successful requests as the client measured them; None without any."""
    from_schedule, from_send, e2e_from_schedule, e2e_from_send, tpot, itl = (_Values() for _ in range(6))
    gaps = Counter[float]()
    for record in _done(records):
        times = record.chunk_s
        from_schedule.add(times[0] - record.scheduled_s)
        from_send.add(times[0] - record.started_s)
        e2e_from_schedule.add(record.ended_s - record.scheduled_s)
        e2e_from_send.add(record.ended_s - record.started_s)
        if _output_tokens(record) > 1:
            tpot.add(_tpot(record))
        gaps.update(round(b - a, _DIGITS) for a, b in pairwise(times))
    for gap, count in gaps.items():
        itl.add(gap, count)
    if not from_send:
        return None
    return Latency(
        ttft_from_schedule_s=from_schedule.distribution(),
        ttft_from_send_s=from_send.distribution(),
        e2e_from_schedule_s=e2e_from_schedule.distribution(),
        e2e_from_send_s=e2e_from_send.distribution(),
        tpot_s=tpot.distribution() if tpot else None,
        itl_per_chunk_s=itl.distribution() if itl else None,
    )


def _done(records: Iterable[RequestRecord]) -> Iterable[RequestRecord]:
    return (record for record in records if record.ok)


def _output_tokens(record: RequestRecord) -> int:
    return record.output_tokens or 0


def _prompt_tokens(record: RequestRecord) -> int:
    return record.prompt_tokens or 0


def _tpot(record: RequestRecord) -> float:
    return (record.ended_s - record.chunk_s[0]) / (_output_tokens(record) - 1)


def throughput(records: Collection[RequestRecord], *, start_s: float, end_s: float, gpus: int | None) -> Throughput:
    """Compute the throughput between two times, in seconds after the first planned arrival.

    Failed requests count too. The tokens of a prompt count at its first chunk. If chunks carry no token counts, the
    tokens of a request are spread evenly over its chunks.
    """
    output = prompt = 0.0
    for record in records:
        output += sum(tokens for at, tokens in _emitted(record) if start_s <= at <= end_s)
        if record.chunk_s and start_s <= record.chunk_s[0] <= end_s:
            prompt += _prompt_tokens(record)
    seconds = end_s - start_s
    return Throughput(
        seconds=seconds,
        output_tok_per_s=output / seconds,
        total_tok_per_s=(output + prompt) / seconds,
        output_tok_per_s_per_gpu=output / seconds / gpus if gpus else None,
    )


def _emitted(record: RequestRecord) -> Iterable[tuple[float, float]]:
    """Yield the arrival time and the number of tokens of each chunk."""
    if record.chunk_tokens:
        return zip(record.chunk_s, [float(b - a) for a, b in pairwise([0, *record.chunk_tokens])], strict=True)
    per_chunk = _output_tokens(record) / len(record.chunk_s) if record.chunk_s else 0.0
    return ((at, per_chunk) for at in record.chunk_s)


def cache_hits(
    records: Collection[RequestRecord], *, target_share: float | None, absent_is_zero: bool, server: ServerCounts | None
) -> CacheHits:
    """Compute the share of prompt tokens read from the prefix cache, from response usage and from server counters.

    sglang omits `cached_tokens` if it is 0 (0.5.14, entrypoints/openai/usage_processor.py). A response without the
    field therefore means 0 if the server is known to report it (`absent_is_zero`) or another response has it.
    """
    cached, prompt, is_reported = 0, 0, absent_is_zero
    for record in _done(records):
        if tokens := _prompt_tokens(record):
            cached, prompt = cached + (record.cached_tokens or 0), prompt + tokens
            is_reported = is_reported or record.cached_tokens is not None
    counts = (server.cached_tokens, server.prompt_tokens) if server else None
    return CacheHits(
        wanted_share=target_share,
        usage_share=cached / prompt if prompt and is_reported else None,
        metrics_share=counts[0] / counts[1] if counts and counts[0] is not None and counts[1] else None,
    )


def failures(records: Collection[RequestRecord]) -> tuple[FailureCount, ...]:
    """Count failed requests by kind, most frequent first, each kind with its first example."""
    counts, examples = Counter[str](), dict[str, str]()
    for record in records:
        if record.failure:
            counts[record.failure] += 1
            examples.setdefault(record.failure, record.failure_example)
    return tuple(FailureCount(kind=kind, count=count, example=examples[kind]) for kind, count in counts.most_common())
