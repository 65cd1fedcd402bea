"""The server's own counters: Prometheus text from sglang's `/metrics`, before and after."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.results.result import ServerCounts

_LINE: Final = re.compile(r"^(sglang:\w+)(?:\{([^}]*)\})?\s+(\S+)$", re.MULTILINE)
_OTHER_RANK: Final = re.compile(r'\btp_rank="(?!0")')


def read_metrics(text: str) -> dict[str, float]:
    """Every metric by name, summed over its labels.

    Ranks of one tensor-parallel group repeat each other with --enable-metrics-for-all-schedulers: only tp rank 0
    counts. Buckets of histograms are left out; `_sum` and `_count` are in.
    """
    totals: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        if name.endswith("_bucket") or _OTHER_RANK.search(labels):
            continue
        totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def histogram_bucket(text: str, name: str, value: float) -> tuple[float, float]:
    """The edges of the bucket of histogram `name` that holds `value`, in the metric's unit."""
    pattern = re.compile(rf'^{re.escape(name)}_bucket\{{[^}}]*le="([^"]+)"', re.MULTILINE)
    edges = sorted({float(edge) for edge in pattern.findall(text)})
    below = max((edge for edge in edges if edge < value), default=0.0)
    return below, min((edge for edge in edges if edge >= value), default=float("inf"))


def server_counts(
    before: Mapping[str, float], after: Mapping[str, float], gauges: Iterable[Mapping[str, float]]
) -> ServerCounts:
    """What the server counted between two readings; `gauges` are readings taken in between."""

    def delta(name: str) -> float | None:
        return after[name] - before.get(name, 0.0) if name in after else None

    def whole(name: str) -> int | None:
        value = delta(name)
        return round(value) if value is not None else None

    def mean(name: str) -> float | None:
        total, count = delta(f"{name}_sum"), delta(f"{name}_count")
        return total / count if total is not None and count else None

    queue = [reading["sglang:num_queue_reqs"] for reading in gauges if "sglang:num_queue_reqs" in reading]
    output, verified = delta("sglang:generation_tokens_total"), delta("sglang:spec_verify_calls_total")
    return ServerCounts(
        requests=whole("sglang:num_requests_total"),
        prompt_tokens=whole("sglang:prompt_tokens_total"),
        output_tokens=whole("sglang:generation_tokens_total"),
        cached_tokens=whole("sglang:cached_tokens_total"),
        ttft_mean_s=mean("sglang:time_to_first_token_seconds"),
        e2e_mean_s=mean("sglang:e2e_request_latency_seconds"),
        retractions=whole("sglang:num_retracted_requests_total"),
        accept_length=output / verified if output and verified else None,
        queue_depth_mean=sum(queue) / len(queue) if queue else None,
        queue_depth_max=max(queue, default=None),
    )
