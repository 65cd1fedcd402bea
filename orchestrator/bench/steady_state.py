"""The criteria of a sustained load: steady window, completion ratio, TTFT growth; and the knee.

**Steady window**: from two median end-to-end latencies after the first planned arrival (the batch is full) to the last
planned arrival (the batch starts to drain). A window shorter than one median latency sees only prefill or only decode
and gives no valid rate: overloaded, four H200 gave 8,889 tok/s over 22 s, but 5,905 in a window of 0.46 s.

**Completion ratio**: the share of the requests planned one median latency before the window that completed within it. A
server that completes 1.9 of 2.0 offered rps has a ratio of 0.95, regardless of the noise of the arrivals.

**Growth**: the slope of TTFT over planned time (Theil-Sen, second half of the arrivals), in seconds per second. A
server that completes mu of lambda rps has a growth of lambda/mu - 1, so the limit of 0.03 corresponds to the ratio of
0.97. Above 400 requests the slopes connect the medians of at most 200 groups of neighbors, which are 19,900 slopes.

A point is **sustained** if TTFT p95 (from schedule) and success share meet the SLO of the workload, the completion
ratio is at least 0.97 and the growth at most 0.03. With too few requests or too short a window the result is None, and
the point is never the knee.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final

from orchestrator.bench.load_generator import RequestRecord
from orchestrator.bench.result import Point
from orchestrator.bench.workload import SustainedLimits, Workload

MIN_COMPLETION_RATIO: Final = 0.97
MAX_TTFT_GROWTH: Final = 0.03
_MIN_REQUESTS: Final = 20  # fewer completions cannot distinguish a ratio of 0.97 from 1
_MIN_WINDOW_S: Final = 5.0  # in a shorter window an overload may look sustained
_MAX_GROUPS: Final = 200


def steady_window(records: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """Return the steady window in seconds after the first planned arrival; None if ramp and drain overlap."""
    done = [record.ended_s - record.scheduled_s for record in records if record.ok]
    if not done:
        return None
    begin, end = 2 * median(done), max(record.scheduled_s for record in records)
    return (begin, end) if begin < end else None


def is_long_enough(window: tuple[float, float]) -> bool:
    """Return whether the window is long enough for a valid rate: at least one median latency."""
    begin, end = window
    return end - begin >= begin / 2


def completion_ratio(records: Sequence[RequestRecord], window: tuple[float, float]) -> float | None:
    """Return completions in the window divided by arrivals one median latency earlier; None for too few requests."""
    begin, end = window
    due = _due_requests(records, window)
    completed = sum(record.ok and begin <= record.ended_s < end for record in records)
    return completed / due if due >= _MIN_REQUESTS else None


def _due_requests(records: Sequence[RequestRecord], window: tuple[float, float]) -> int:
    """Count the arrivals whose completions are due in the window."""
    begin, end = window
    return sum(begin / 2 <= record.scheduled_s < end - begin / 2 for record in records)


def ttft_growth(records: Sequence[RequestRecord]) -> float | None:
    """Return the growth of TTFT per second over the second half of the arrivals; None below 20 requests."""
    points = _second_half_ttft(records)
    if len(points) < _MIN_REQUESTS:
        return None
    size = math.ceil(len(points) / _MAX_GROUPS)
    return _theil_sen([_median_point(points[first : first + size]) for first in range(0, len(points), size)])


def _second_half_ttft(records: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """Return (planned time, TTFT) of each request with a token in the second half of the arrivals."""
    second_half = sorted(records, key=lambda record: record.scheduled_s)[len(records) // 2 :]
    return [(record.scheduled_s, record.chunk_s[0] - record.scheduled_s) for record in second_half if record.chunk_s]


def _median_point(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of each coordinate, which is robust against a single late response."""
    return median(x for x, _ in points), median(y for _, y in points)


def _theil_sen(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the median slope between two points (Theil 1950, Sen 1968, JASA 63:1379); None if all x are equal."""
    slopes = [(y_b - y_a) / (x_b - x_a) for (x_a, y_a), (x_b, y_b) in combinations(points, 2) if x_b > x_a]
    return median(slopes) if slopes else None


def judge_sustained(
    point: Point, records: Sequence[RequestRecord], limits: SustainedLimits
) -> tuple[bool | None, tuple[str, ...]]:
    """Judge whether an open-loop point is sustained (None: cannot be judged), with all reasons against it."""
    reasons = []
    ttft = point.latency.ttft_from_schedule_s.p95 if point.latency else math.inf
    if ttft > limits.ttft_p95_s:
        reasons.append(f"TTFT p95 {ttft:.2f} s exceeds {limits.ttft_p95_s:g} s")
    if point.success_share < limits.success_share:
        reasons.append(f"success {point.success_share:.1%} is below {limits.success_share:.0%}")
    if point.completion_ratio is not None and point.completion_ratio < MIN_COMPLETION_RATIO:
        reasons.append(f"only {point.completion_ratio:.1%} of the offered rate completed")
    if point.ttft_growth_s_per_s is not None and point.ttft_growth_s_per_s > MAX_TTFT_GROWTH:
        reasons.append(f"the queue grows: TTFT rises by {point.ttft_growth_s_per_s:.3f} s per second")
    if reasons:
        return False, tuple(reasons)
    begin, end = steady_window(records) or (0.0, 0.0)
    if point.completion_ratio is None or point.ttft_growth_s_per_s is None:
        counted = min(_due_requests(records, (begin, end)), len(_second_half_ttft(records)))
        return None, (_too_few(counted, len(records)),)
    if end - begin < (needed := max(_MIN_WINDOW_S, begin / 2)):
        return None, (_too_short(end - begin, needed),)
    return True, ()


def unjudgeable_rates(workload: Workload) -> tuple[tuple[str, ...], str]:
    """Return the reasons why rates of a workload are too short to judge, and a hint with a sufficient option.

    At most the second half of the requests and the time between first and last arrival count.
    """
    rates_by_reason: dict[str, list[str]] = {}
    hint = f"`--requests {2 * _MIN_REQUESTS}`"
    for rate in workload.request_rates:
        requests = workload.requests_at(rate)
        short = (requests - 1) / rate < _MIN_WINDOW_S
        if (counted := requests - requests // 2) < _MIN_REQUESTS:
            rates_by_reason.setdefault(_too_few(counted, requests), []).append(f"{rate:g}")
        elif short:
            rates_by_reason.setdefault(_too_short((requests - 1) / rate, _MIN_WINDOW_S), []).append(f"{rate:g}")
        if short or workload.duration_s is not None:
            hint = (
                f"`--duration {max(2 * _MIN_WINDOW_S, math.ceil(2 * _MIN_REQUESTS / min(workload.request_rates))):g}`"
            )
    reasons = (f"cannot judge {', '.join(rates)} rps: {reason}" for reason, rates in rates_by_reason.items())
    return tuple(reasons), hint


def _too_few(counted: int, requests: int) -> str:
    return f"{counted} of {requests} requests counted, {_MIN_REQUESTS} needed"


def _too_short(seconds: float, needed: float) -> str:
    return f"{seconds:.1f} s counted, {needed:.3g} s needed"


def knee(points: Sequence[Point]) -> float | None:
    """Return the highest sustained rate (requests/s) below the first unsustained one; None if there is none."""
    best = None
    for point in sorted((p for p in points if p.offered_rps is not None), key=lambda p: p.offered_rps or 0.0):
        if point.sustained is False:
            break
        best = point.offered_rps if point.sustained else best
    return best
