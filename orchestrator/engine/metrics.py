"""sglang's metrics: the Prometheus text of a server that runs with --enable-metrics."""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from orchestrator.engine import liveness
from orchestrator.engine.liveness import number_in, samples
from orchestrator.engine.responses import MAX_COUNT

_CACHE_SOURCE: Final = re.compile(r'\bcache_source="(device|host|storage)')  # 0.5.14 adds the name of the storage
_UPPER_END: Final = re.compile(r'\ble="([^"]+)"')


# With prometheus_client 0.22 or later a server writes `_` for `:` if the client requests OpenMetrics, as Prometheus
# does (`escaping=underscores`, seen with 0.26). A regular expression of the escaped name, and the original name.
ESCAPED: Final = ("sglang_(.+)", "sglang:$1")


class Metric(StrEnum):
    """The counters, gauges and histograms that `deploy` reads (0.5.14, srt/observability/metrics_collector.py)."""

    REQUESTS = liveness.REQUESTS
    PROMPT_TOKENS = "sglang:prompt_tokens_total"
    OUTPUT_TOKENS = "sglang:generation_tokens_total"
    CACHED_TOKENS = "sglang:cached_tokens_total"
    # By tier, if the server has several, else only `total`. The sum over sources is CACHED_TOKENS.
    CACHED_DEVICE_TOKENS = 'sglang:cached_tokens_total{cache_source="device"}'
    CACHED_HOST_TOKENS = 'sglang:cached_tokens_total{cache_source="host"}'
    CACHED_STORAGE_TOKENS = 'sglang:cached_tokens_total{cache_source="storage"}'
    VERIFY_STEPS = "sglang:spec_verify_calls_total"
    DRAFTS = "vllm:spec_decode_num_drafts_total"  # verification steps, counted where drafts were verified
    ACCEPTED_DRAFTS = "vllm:spec_decode_num_accepted_tokens_total"  # tokens; sglang 0.5.14 counts none
    QUEUED = "sglang:num_queue_reqs"
    RUNNING = "sglang:num_running_reqs"
    USED_TOKENS = "sglang:num_used_tokens"  # used KV-cache tokens, without evictable tokens
    ALL_TOKENS = "sglang:max_total_num_tokens"
    TTFT = liveness.FIRST_TOKENS  # a histogram: `_sum` and `_count`
    ITL = liveness.LATER_TOKENS  # a histogram
    E2E = "sglang:e2e_request_latency_seconds"  # a histogram
    RANK_TOKENS = liveness.RANK_TOKENS  # per rank, updated after every prefill chunk and decode step
    # Requests whose response has not begun (0.5.14, srt/utils/common.py). Only the template of the rules reads it.
    OPEN_REQUESTS = "sglang:http_requests_active"


# The same metrics in vLLM (0.32.0, v1/metrics/loggers.py).
VLLM_METRICS: Final[Mapping[str, Metric]] = {
    "vllm:request_success_total": Metric.REQUESTS,
    "vllm:prompt_tokens_total": Metric.PROMPT_TOKENS,
    "vllm:generation_tokens_total": Metric.OUTPUT_TOKENS,
    "vllm:prompt_tokens_cached_total": Metric.CACHED_TOKENS,
    "vllm:num_requests_waiting": Metric.QUEUED,
    "vllm:num_requests_running": Metric.RUNNING,
    "vllm:time_to_first_token_seconds": Metric.TTFT,
    "vllm:inter_token_latency_seconds": Metric.ITL,
    "vllm:e2e_request_latency_seconds": Metric.E2E,
}
# The same metrics in ATOM (ROCm/ATOM, docs/metrics_guide.md at 1022e654), updated once a second; never run.
ATOM_METRICS: Final[Mapping[str, Metric]] = {
    "atom:requests_finished_total": Metric.REQUESTS,
    "atom:prompt_tokens_total": Metric.PROMPT_TOKENS,
    "atom:generation_tokens_total": Metric.OUTPUT_TOKENS,
    "atom:prefix_cache_cached_tokens_total": Metric.CACHED_TOKENS,
    "atom:mtp_decode_steps_total": Metric.DRAFTS,
    "atom:mtp_accepted_tokens_total": Metric.ACCEPTED_DRAFTS,
    "atom:requests_waiting": Metric.QUEUED,
    "atom:requests_running": Metric.RUNNING,
    "atom:time_to_first_token_seconds": Metric.TTFT,
    "atom:inter_token_latency_seconds": Metric.ITL,
}
_NAMES: Final[Mapping[str, Metric]] = {**VLLM_METRICS, **ATOM_METRICS, **{str(item): item for item in Metric}}
_READ: Final = {
    f"{name}{suffix}": f"{item}{suffix}" for name, item in _NAMES.items() for suffix in ("", "_sum", "_count")
}
Metrics = Mapping[str, float | None]  # None: a legal value that cannot be summed (NaN, +Inf)


def read_metrics(content: bytes | bytearray) -> Metrics:
    """Parse the metrics of sglang, vLLM or ATOM by the names in `Metric`, each summed over its labels.

    A histogram is read as `_sum` and `_count`.
    """
    totals: dict[str, float] = {}
    for name, labels, value in samples(content, _READ):
        totals[_READ[name]] = totals.get(_READ[name], 0.0) + value
        if name == Metric.CACHED_TOKENS and (source := _CACHE_SOURCE.search(labels)):
            tier = f'{name}{{cache_source="{source[1]}"}}'
            totals[tier] = totals.get(tier, 0.0) + value
    return {name: total if abs(total) <= MAX_COUNT else None for name, total in totals.items()}


Buckets = Mapping[float, float]  # histogram: upper bound in seconds → cumulative count; the last bound is infinite


def read_buckets(content: bytes | bytearray, metric: Metric) -> Buckets:
    """Parse a histogram's buckets by ascending upper bounds, summed over its labels; {} if it is not exported."""
    counts: dict[float, float] = {}
    for _, labels, value in samples(content, {f"{metric}_bucket"}):
        if end := _UPPER_END.search(labels):
            seconds = number_in(end[1])
            if not math.isnan(seconds) and abs(value) <= MAX_COUNT:
                counts[seconds] = counts.get(seconds, 0.0) + value
    return dict(sorted(counts.items()))


def quantile(before: Buckets, after: Buckets, share: float) -> float | None:
    """Return the quantile `share`, in seconds, of the observations between two readings of a histogram.

    The value is interpolated within its bucket, as in Prometheus (promql/quantile.go); for the last, infinite bucket it
    is the lower bound. None without observations, or if a count decreased.
    """
    counts = [(end, count - before.get(end, 0.0)) for end, count in after.items()]
    total = counts[-1][1] if counts else 0.0
    if total <= 0 or any(count < 0 for _, count in counts):
        return None
    begin, below = 0.0, 0.0
    for end, count in counts:
        if count >= share * total:
            position = (share * total - below) / (count - below) if count > below else 0.0
            return begin if math.isinf(end) else begin + (end - begin) * position
        begin, below = end, count
    return None


def queue_query(server: str) -> str:
    """Return the PromQL query for the queued requests of a server's replicas, each data-parallel rank counted once."""
    return f"sum({_of_ranks(Metric.QUEUED, server)})"


def cache_usage_query(server: str) -> str:
    """Return the PromQL query for the mean KV-cache usage over the ranks of all replicas of a server."""
    return f"avg({_of_ranks(Metric.USED_TOKENS, server)} / {_of_ranks(Metric.ALL_TOKENS, server)})"


def _of_ranks(metric: Metric, server: str) -> str:
    # The ranks of a tensor-parallel group report the same values; the series without a priority is the total (0.5.14).
    return f'max by (pod, dp_rank) ({metric}{{server="{server}",priority=""}})'
