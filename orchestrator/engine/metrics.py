"""sglang's own counters: the Prometheus text of a server that runs with --enable-metrics."""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from orchestrator.engine.answers import MOST_COUNT

MOST_METRICS_BYTES: Final = 8 << 20
# One sample a line, with a time behind it or not; a value of a label may hold any character but a bare quote.
_LINE: Final = re.compile(
    r'^(sglang:\w+)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]+([-+.\w]+)(?:[ \t]+-?\d+)?[ \t\r]*$', re.MULTILINE
)
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
    RUNNING = "sglang:num_running_reqs"
    TTFT = "sglang:time_to_first_token_seconds"  # a histogram: `_sum` and `_count`
    E2E = "sglang:e2e_request_latency_seconds"  # a histogram as well


_READ: Final = frozenset(f"{each}{part}" for each in Metric for part in ("", "_sum", "_count"))
Metrics = Mapping[str, float | None]  # None: what stands there is no number to count with, which is legal (NaN, +Inf)


def read_metrics(content: bytes | bytearray) -> Metrics:
    """The metrics that are named here and exported, each summed over its labels, histograms as `_sum` and `_count`.

    Ranks of one tensor-parallel group repeat each other with --enable-metrics-for-all-schedulers: only tp rank 0
    counts.
    """
    totals: dict[str, float] = {}
    for line in _LINE.finditer(content.decode(errors="replace")):
        name, labels, value = line.groups(default="")
        if name in _READ and not _OTHER_RANK.search(labels):
            totals[name] = totals.get(name, 0.0) + _float(value)
    return {name: total if abs(total) <= MOST_COUNT else None for name, total in totals.items()}


def _float(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
