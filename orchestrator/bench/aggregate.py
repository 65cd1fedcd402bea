"""From the requests of one point to its figures, by the field's definitions; units in `results/result.py`. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.bench import metrics
from orchestrator.bench.load_generator import LoadResult, RequestRecord
from orchestrator.bench.result import (
    CacheHits,
    Distribution,
    Energy,
    FailureCount,
    Latency,
    Point,
    Price,
    ServerCounts,
    Throughput,
)
from orchestrator.bench.steady_state import (
    completion_ratio,
    is_long_enough,
    judge_sustained,
    steady_window,
    ttft_growth,
)
from orchestrator.bench.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything seen at one point."""

    label: str
    started_at: str
    drive: LoadResult
    server: ServerCounts | None
    energy: Energy | None
    reports_cache: bool
    gpus: int | None


def summarize_open_loop(observed: Observation, workload: Workload, *, rate_rps: float, price: Price | None) -> Point:
    """The figures of one offered rate, judged against the workload's limits."""
    samples = observed.drive.samples
    window = steady_window(samples)
    steady = (
        throughput(samples, begin=window[0], end=window[1], gpus=observed.gpus)
        if window and is_long_enough(window)
        else None
    )
    point = replace(
        _point(observed, workload, arrivals=workload.arrivals),
        offered_rps=rate_rps,
        sent_rps=_sent_rps(samples),
        achieved_rps=_completed(samples, window) / steady.seconds if window and steady else None,
        completion_ratio=completion_ratio(samples, window) if window else None,
        ttft_growth_s_per_s=ttft_growth(samples),
        window=steady,
    )
    point = replace(point, usd_per_million_output_tokens=_usd(steady or point.full_run, price, observed.gpus))
    sustained, reasons = judge_sustained(point, samples, workload.slo)
    return replace(point, sustained=sustained, not_sustained_because=reasons)


def summarize_closed_loop(observed: Observation, workload: Workload, *, price: Price | None) -> Point:
    """The figures of one concurrency."""
    point = _point(observed, workload, arrivals="closed")
    cost = _usd(point.full_run, price, observed.gpus)
    return replace(point, concurrency=workload.concurrency, usd_per_million_output_tokens=cost)


def _point(observed: Observation, workload: Workload, *, arrivals: str) -> Point:
    samples, server = observed.drive.samples, observed.server
    done = [sample for sample in samples if sample.ok]
    end = max((sample.ended_s for sample in samples), default=0.0)
    in_time = sum(sample.chunk_s[0] - sample.scheduled_s <= workload.slo.ttft_p95_s for sample in done)
    return Point(
        label=observed.label,
        arrivals=arrivals,
        ending=observed.drive.ending,
        started_at=observed.started_at,
        requests=len(samples),
        succeeded=len(done),
        success_share=len(done) / len(samples) if samples else 0.0,
        failures=failures(samples),
        input_tokens=sum(map(_prompt_tokens, done)),
        output_tokens=sum(map(_output_tokens, done)),
        goodput_rps=in_time / end if end else None,
        full_run=throughput(samples, begin=0.0, end=end, gpus=observed.gpus) if end else None,
        latency=latency(samples),
        send_lag_s=distribution(max(0.0, sample.started_s - sample.scheduled_s) for sample in samples),
        cache=cache_hits(
            samples, wanted_share=workload.cache_hit_rate, absent_is_zero=observed.reports_cache, server=server
        ),
        server=server,
        energy=observed.energy,
    )


def _sent_rps(samples: Sequence[RequestRecord]) -> float | None:
    started = sorted(sample.started_s for sample in samples)
    return (len(started) - 1) / (started[-1] - started[0]) if len(started) > 1 else None


def _completed(samples: Sequence[RequestRecord], window: tuple[float, float]) -> int:
    return sum(sample.ok and window[0] <= sample.ended_s <= window[1] for sample in samples)


def _usd(throughput: Throughput | None, price: Price | None, gpus: int | None) -> float | None:
    """US dollars per million output tokens: what the GPUs cost in the time they take for them."""
    if throughput is None or price is None or gpus is None:
        return None
    return metrics.usd_per_million_tokens(price.usd_per_gpu_hour * gpus, throughput.output_tok_per_s)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The `share` quantile of ascending values, linearly interpolated (Hyndman and Fan type 7, numpy's default)."""
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def distribution(values: Iterable[float]) -> Distribution | None:
    """The distribution of `values`; None where there are none."""
    found = list(values)
    return _distribution(found) if found else None


def _distribution(values: Sequence[float]) -> Distribution:
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.90, 0.95, 0.99))
    mean = sum(ordered) / len(ordered)
    return Distribution(count=len(ordered), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=ordered[-1])


def latency(samples: Sequence[RequestRecord]) -> Latency | None:
    """What the client saw, over the successful requests."""
    done = [sample for sample in samples if sample.ok]
    if not done:
        return None
    several = [sample for sample in done if _output_tokens(sample) > 1]
    chunks = sum(len(sample.chunk_s) for sample in done)
    return Latency(
        ttft_from_schedule_s=_distribution([sample.chunk_s[0] - sample.scheduled_s for sample in done]),
        ttft_from_send_s=_distribution([sample.chunk_s[0] - sample.started_s for sample in done]),
        e2e_from_schedule_s=_distribution([sample.ended_s - sample.scheduled_s for sample in done]),
        e2e_from_send_s=_distribution([sample.ended_s - sample.started_s for sample in done]),
        tpot_s=distribution(map(_tpot, several)),
        itl_per_chunk_s=distribution(_gaps(done)),
        tokens_per_chunk=sum(map(_output_tokens, done)) / chunks,
    )


def _output_tokens(sample: RequestRecord) -> int:
    return sample.output_tokens or 0


def _prompt_tokens(sample: RequestRecord) -> int:
    return sample.prompt_tokens or 0


def _gaps(samples: Sequence[RequestRecord]) -> Iterable[float]:
    return (b - a for sample in samples for a, b in pairwise(sample.chunk_s))


def _tpot(sample: RequestRecord) -> float:
    return (sample.ended_s - sample.chunk_s[0]) / (_output_tokens(sample) - 1)


def throughput(samples: Sequence[RequestRecord], *, begin: float, end: float, gpus: int | None) -> Throughput:
    """Tokens that arrived in [begin, end], seconds after the first planned arrival, of failed requests too.

    A prompt's tokens are counted at its first chunk. Where chunks do not say how many tokens they carry, a request's
    tokens are spread evenly over its chunks.
    """
    output = prompt = 0.0
    for sample in samples:
        output += sum(tokens for at, tokens in _emitted(sample) if begin <= at <= end)
        if sample.chunk_s and begin <= sample.chunk_s[0] <= end:
            prompt += _prompt_tokens(sample)
    seconds = end - begin
    total = output + prompt
    return Throughput(
        seconds=seconds,
        output_tok_per_s=output / seconds,
        total_tok_per_s=total / seconds,
        output_tok_per_s_per_gpu=output / seconds / gpus if gpus else None,
        total_tok_per_s_per_gpu=total / seconds / gpus if gpus else None,
    )


def _emitted(sample: RequestRecord) -> Iterable[tuple[float, float]]:
    """Arrival and number of tokens of each chunk."""
    so_far = sample.chunk_tokens
    if so_far and all(tokens is not None for tokens in so_far):
        counts = [tokens or 0 for tokens in so_far]
        return zip(sample.chunk_s, [float(b - a) for a, b in pairwise([0, *counts])], strict=True)
    each = _output_tokens(sample) / len(sample.chunk_s) if sample.chunk_s else 0.0
    return ((at, each) for at in sample.chunk_s)


def cache_hits(
    samples: Sequence[RequestRecord], *, wanted_share: float, absent_is_zero: bool, server: ServerCounts | None
) -> CacheHits:
    """The share of prompt tokens that came from cache, by the answers' usage and by the server's counters.

    sglang leaves `cached_tokens` out where it is 0 (0.5.14, entrypoints/openai/usage_processor.py), so an answer
    without it means 0 where the server is known to report (`absent_is_zero`), or where another answer has it.
    """
    done = [sample for sample in samples if sample.ok and sample.prompt_tokens]
    pairs = _cached_and_prompt(done, absent_is_zero=absent_is_zero)
    cached, prompt = sum(cached for cached, _ in pairs), sum(prompt for _, prompt in pairs)
    return CacheHits(
        wanted_share=wanted_share,
        usage_share=cached / prompt if prompt else None,
        usage_share_per_request=distribution(cached / prompt for cached, prompt in pairs),
        metrics_share=_metrics_share(server),
    )


def _cached_and_prompt(done: Sequence[RequestRecord], *, absent_is_zero: bool) -> list[tuple[int, int]]:
    """Tokens from cache and of the prompt, a request; empty where the server does not report them."""
    if not absent_is_zero and all(sample.cached_tokens is None for sample in done):
        return []
    return [(sample.cached_tokens or 0, _prompt_tokens(sample)) for sample in done]


def _metrics_share(server: ServerCounts | None) -> float | None:
    if server is None or server.cached_tokens is None or not server.prompt_tokens:
        return None
    return server.cached_tokens / server.prompt_tokens


def failures(samples: Sequence[RequestRecord]) -> tuple[FailureCount, ...]:
    """How many requests failed in which way, the most frequent first, each with its first example."""
    counts = Counter(sample.failure for sample in samples if sample.failure)
    examples = {sample.failure: sample.failure_example for sample in reversed(samples) if sample.failure}
    return tuple(FailureCount(kind=kind, count=count, example=examples[kind]) for kind, count in counts.most_common())
