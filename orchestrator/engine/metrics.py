"""sglang's own counters: the Prometheus text of a server that runs with --enable-metrics."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orchestrator.engine.answers import MOST_COUNT

MOST_METRICS_BYTES: Final = 8 << 20
# One sample a line, with a time behind it or not; a value of a label may hold any character but a bare quote.
_LINE: Final = re.compile(
    r'^(sglang:\w+)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]+([-+.\w]+)(?:[ \t]+-?\d+)?[ \t\r]*$', re.MULTILINE
)
_OTHER_RANK: Final = re.compile(r'\btp_rank="(?!0")')
_DP_RANK: Final = re.compile(r'\bdp_rank="([0-9]{1,6})"')
_DECODED: Final = 'mode="decode"'
_UPPER_END: Final = re.compile(r'\ble="([^"]+)"')


# A server whose prometheus_client is 0.22 or younger writes `_` for `:` where OpenMetrics is asked for, as Prometheus
# does (`escaping=underscores`, seen with 0.26): a regular expression of what it writes, and what stands in the sources.
ESCAPED: Final = ("sglang_(.+)", "sglang:$1")


class Metric(StrEnum):
    """The counters and gauges that are read here (0.5.14, srt/observability/metrics_collector.py)."""

    REQUESTS = "sglang:num_requests_total"
    PROMPT_TOKENS = "sglang:prompt_tokens_total"
    OUTPUT_TOKENS = "sglang:generation_tokens_total"
    CACHED_TOKENS = "sglang:cached_tokens_total"
    VERIFY_STEPS = "sglang:spec_verify_calls_total"
    RETRACTIONS = "sglang:num_retracted_requests_total"
    QUEUED = "sglang:num_queue_reqs"
    RUNNING = "sglang:num_running_reqs"
    USED_TOKENS = "sglang:num_used_tokens"  # of the KV cache, those that may be evicted not counted
    ALL_TOKENS = "sglang:max_total_num_tokens"
    TTFT = "sglang:time_to_first_token_seconds"  # a histogram: `_sum` and `_count`
    ITL = "sglang:inter_token_latency_seconds"  # histograms as well
    E2E = "sglang:e2e_request_latency_seconds"
    RANK_TOKENS = "sglang:realtime_tokens_total"  # of each rank, at every chunk of prefill and every step of decode
    OPEN_REQUESTS = "sglang:http_requests_active"  # until an answer begins (0.5.14, srt/utils/common.py)


# Counted where an answer is put together, behind the detokenizer (0.5.14, managers/tokenizer_manager.py, line 2363).
_COMING_OUT: Final = frozenset({f"{Metric.TTFT}_count", f"{Metric.ITL}_count", str(Metric.REQUESTS)})
_READ: Final = frozenset(f"{each}{part}" for each in Metric for part in ("", "_sum", "_count"))
Metrics = Mapping[str, float | None]  # None: what stands there is no number to count with, which is legal (NaN, +Inf)


def read_metrics(content: bytes | bytearray) -> Metrics:
    """The metrics that are named here and exported, each summed over its labels, histograms as `_sum` and `_count`.

    Ranks of one tensor-parallel group repeat each other with --enable-metrics-for-all-schedulers: only tp rank 0
    counts.
    """
    totals: dict[str, float] = {}
    for name, _, value in _samples(content, _READ):
        totals[name] = totals.get(name, 0.0) + value
    return {name: total if abs(total) <= MOST_COUNT else None for name, total in totals.items()}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a server has done so far: tokens by data-parallel rank, and what has come out of it."""

    done: Mapping[int, float]  # prefilled and decoded; it grows while a request gets on. {}: it does not count them
    decoded: Mapping[int, float]
    came_out: float | None  # first tokens, later ones and ends of requests, behind the detokenizer; None: not counted


def read_work(content: bytes | bytearray) -> Work:
    """The work of each rank, by its scheduler, and what came out, by the process that answers.

    A server of one rank does not say which it is.
    """
    done: dict[int, float] = {}
    decoded: dict[int, float] = {}
    for _, labels, value in _samples(content, {Metric.RANK_TOKENS}):
        named = _DP_RANK.search(labels)
        rank = int(named[1]) if named else 0
        done[rank] = done.get(rank, 0.0) + value
        if _DECODED in labels:
            decoded[rank] = decoded.get(rank, 0.0) + value
    came_out = [value for _, _, value in _samples(content, _COMING_OUT)]
    return Work(done=done, decoded=decoded, came_out=sum(came_out) if came_out else None)


Buckets = Mapping[float, float]  # of a histogram: how many took at most so many seconds; the last end is infinite


def read_buckets(content: bytes | bytearray, metric: Metric) -> Buckets:
    """A histogram that is exported, by ascending ends, summed over its labels as `read_metrics` sums; {} for none."""
    counts: dict[float, float] = {}
    for _, labels, value in _samples(content, {f"{metric}_bucket"}):
        if end := _UPPER_END.search(labels):
            seconds = _float(end[1])
            if not math.isnan(seconds) and abs(value) <= MOST_COUNT:
                counts[seconds] = counts.get(seconds, 0.0) + value
    return dict(sorted(counts.items()))


def quantile(before: Buckets, after: Buckets, share: float) -> float | None:
    """Seconds within which that share of what was counted between two readings was done.

    It is interpolated in its bucket, as Prometheus does it (promql/quantile.go); of the last one, which has no end, it
    is where that begins. None where nothing was counted, and where the counts went back.
    """
    counted = [(end, count - before.get(end, 0.0)) for end, count in after.items()]
    total = counted[-1][1] if counted else 0.0
    if total <= 0 or any(count < 0 for _, count in counted):
        return None
    begin, below = 0.0, 0.0
    for end, count in counted:
        if count >= share * total:
            within = (share * total - below) / (count - below) if count > below else 0.0
            return begin if math.isinf(end) else begin + (end - begin) * within
        begin, below = end, count
    return None


def _samples(content: bytes | bytearray, names: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of each sample of these that counts."""
    for line in _LINE.finditer(content.decode(errors="replace")):
        name, labels, value = line.groups(default="")
        if name in names and not _OTHER_RANK.search(labels):
            yield name, labels, _float(value)


def _float(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
