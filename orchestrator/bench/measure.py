"""From samples to figures: pure functions with the field's definitions, see `results.py` for units."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from orchestrator.bench.drive import Sample
from orchestrator.results.result import Cache, FailureCount, Latency, ServerCounts, Spread, Throughput


def percentile(ordered: Sequence[float], share: float) -> float:
    """The `share` quantile of ascending values, linearly interpolated (Hyndman and Fan type 7, numpy's default)."""
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Iterable[float]) -> Spread | None:
    """The distribution of `values`; None where there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.90, 0.95, 0.99))
    mean = sum(ordered) / len(ordered)
    return Spread(count=len(ordered), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=ordered[-1])


def latency(samples: Sequence[Sample]) -> Latency | None:
    """What the client saw, over the successful requests."""
    done = [sample for sample in samples if sample.ok and sample.chunk_s]
    ttft_planned = spread(sample.chunk_s[0] - sample.scheduled_s for sample in done)
    ttft_sent = spread(sample.chunk_s[0] - sample.started_s for sample in done)
    e2e_planned = spread(sample.ended_s - sample.scheduled_s for sample in done)
    e2e_sent = spread(sample.ended_s - sample.started_s for sample in done)
    if ttft_planned is None or ttft_sent is None or e2e_planned is None or e2e_sent is None:
        return None
    chunks = sum(len(sample.chunk_s) for sample in done)
    return Latency(
        ttft_from_schedule_s=ttft_planned,
        ttft_from_send_s=ttft_sent,
        e2e_from_schedule_s=e2e_planned,
        e2e_from_send_s=e2e_sent,
        tpot_s=spread(_tpot(sample) for sample in done if (sample.output_tokens or 0) > 1),
        itl_per_chunk_s=spread(b - a for sample in done for a, b in pairwise(sample.chunk_s)),
        tokens_per_chunk=sum(sample.output_tokens or 0 for sample in done) / chunks,
    )


def _tpot(sample: Sample) -> float:
    return (sample.ended_s - sample.chunk_s[0]) / ((sample.output_tokens or 0) - 1)


def throughput(samples: Sequence[Sample], *, begin: float, end: float, gpus: int | None) -> Throughput:
    """Tokens that arrived in [begin, end], seconds after the first planned arrival, of failed requests too.

    A prompt's tokens are counted at its first chunk. Where chunks do not say how many tokens they carry, a request's
    tokens are spread evenly over its chunks.
    """
    output = prompt = 0.0
    for sample in samples:
        output += sum(tokens for at, tokens in _emitted(sample) if begin <= at <= end)
        if sample.chunk_s and begin <= sample.chunk_s[0] <= end:
            prompt += sample.prompt_tokens or 0
    seconds = end - begin
    total = output + prompt
    return Throughput(
        seconds=seconds,
        output_tok_per_s=output / seconds,
        total_tok_per_s=total / seconds,
        output_tok_per_s_per_gpu=output / seconds / gpus if gpus else None,
        total_tok_per_s_per_gpu=total / seconds / gpus if gpus else None,
    )


def _emitted(sample: Sample) -> Iterable[tuple[float, float]]:
    """Arrival and number of tokens of each chunk."""
    so_far = sample.chunk_tokens
    if so_far and all(tokens is not None for tokens in so_far):
        counts = [tokens or 0 for tokens in so_far]
        return zip(sample.chunk_s, [float(b - a) for a, b in pairwise([0, *counts])], strict=True)
    each = (sample.output_tokens or 0) / len(sample.chunk_s) if sample.chunk_s else 0.0
    return ((at, each) for at in sample.chunk_s)


def cache(
    samples: Sequence[Sample], *, wanted_share: float, absent_is_zero: bool, server: ServerCounts | None
) -> Cache:
    """The share of prompt tokens that came from cache, by the answers' usage and by the server's counters.

    sglang leaves `cached_tokens` out where it is 0 (0.5.14, entrypoints/openai/usage_processor.py), so an answer
    without it means 0 where the server is known to report (`absent_is_zero`), or where another answer has it.
    """
    done = [sample for sample in samples if sample.ok and sample.prompt_tokens]
    reported = absent_is_zero or any(sample.cached_tokens is not None for sample in done)
    prompt = sum(sample.prompt_tokens or 0 for sample in done)
    cached = sum(sample.cached_tokens or 0 for sample in done)
    each = spread((sample.cached_tokens or 0) / (sample.prompt_tokens or 1) for sample in done)
    metrics_share = None
    if server is not None and server.prompt_tokens and server.cached_tokens is not None:
        metrics_share = server.cached_tokens / server.prompt_tokens
    return Cache(
        wanted_share=wanted_share,
        usage_share=cached / prompt if reported and prompt else None,
        usage_share_per_request=each if reported else None,
        metrics_share=metrics_share,
    )


def failures(samples: Sequence[Sample]) -> tuple[FailureCount, ...]:
    """How many requests failed in which way, the most frequent first, each with its first example."""
    counts = Counter(sample.failure for sample in samples if sample.failure)
    examples = {sample.failure: sample.failure_example for sample in reversed(samples) if sample.failure}
    return tuple(FailureCount(kind=kind, count=count, example=examples[kind]) for kind, count in counts.most_common())
