"""sglang's own counters: the Prometheus text of a server that runs with --enable-metrics."""

import re
from enum import StrEnum
from typing import Final

_LINE: Final = re.compile(r"^(sglang:\w+)(?:\{([^}]*)\})?\s+([-+.\deE]+|NaN|[-+]?Inf)$", re.MULTILINE)
_OTHER_RANK: Final = re.compile(r'\btp_rank="(?!0")')


class Metric(StrEnum):
    """The counters and gauges that are read here (0.5.14, srt/metrics/collector.py)."""

    REQUESTS = "sglang:num_requests_total"
    PROMPT_TOKENS = "sglang:prompt_tokens_total"
    OUTPUT_TOKENS = "sglang:generation_tokens_total"
    CACHED_TOKENS = "sglang:cached_tokens_total"
    VERIFY_STEPS = "sglang:spec_verify_calls_total"
    RETRACTIONS = "sglang:num_retracted_requests_total"
    QUEUED = "sglang:num_queue_reqs"
    TTFT = "sglang:time_to_first_token_seconds"  # a histogram: `_sum` and `_count`
    E2E = "sglang:e2e_request_latency_seconds"  # a histogram as well


def read_metrics(text: str) -> dict[str, float]:
    """Every metric by name, summed over its labels.

    Ranks of one tensor-parallel group repeat each other with --enable-metrics-for-all-schedulers: only tp rank 0
    counts. Buckets of histograms are left out; `_sum` and `_count` are in. What is no number is passed over.
    """
    totals: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        if name.endswith("_bucket") or _OTHER_RANK.search(labels):
            continue
        try:
            totals[name] = totals.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return totals
