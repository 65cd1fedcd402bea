"""The criteria of a sustained load: steady window, completion ratio, TTFT growth; and the knee.

**Steady window**: from two median end-to-end latencies after the first planned arrival (the batch is full) to the last
planned arrival (the batch starts to drain). A window shorter than one median latency sees only prefill or only decode
and gives no valid rate: overloaded, four H200 gave 8,889 tok/s over 22 s, but 5,905 in a window of 0.46 s.

**Completion ratio**: completions in the window / requests that were due in it (planned one median latency before).
Noise in the arrivals does not affect the ratio, but chance does: if each request is missing with a probability of 3 %,
at most `_tolerated(due)` are missing in 95 % of all runs. If more are missing, the load is not sustained; if fewer, but
more than 3 %, the rate is not judged. If completions exceed the requests due by more than the same bound, a queue
drained, for example after a stall: the window then has no valid rate.

**Growth**: the slope of TTFT over planned time (Theil-Sen, second half of the arrivals), in seconds per second. A
server that completes mu of lambda rps has a growth of lambda/mu - 1, so the limit of 0.03 corresponds to the ratio of
0.97. Above 400 requests the slopes connect the medians of at most 200 groups of neighbors, which are 19,900 slopes.

A point is **sustained** if TTFT p95 (from schedule) and success share meet the SLO of the workload, the completion
ratio is at least 0.97 and the growth at most 0.03. If that cannot be judged, the result is None, and the point is never
the knee.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from statistics import median
from typing import Final

from orchestrator.bench.record_file import RequestRecord
from orchestrator.bench.result import Latency, Point
from orchestrator.bench.workload import SustainedLimits, Workload

MIN_COMPLETION_RATIO: Final = 0.97
MAX_TTFT_GROWTH: Final = 0.03
_MIN_REQUESTS: Final = 20  # with fewer, two late requests look like an overload
_MIN_WINDOW_S: Final = 5.0  # in a shorter window an overload may look sustained
_MAX_GROUPS: Final = 200


@dataclass(frozen=True, kw_only=True)
class SteadyWindow:
    """The steady window of a point in seconds after the first planned arrival, with its request counts."""

    begin_s: float  # two median end-to-end latencies
    end_s: float
    completed: int  # successful completions in the window
    due: int  # requests planned one median latency before it

    @property
    def has_rate(self) -> bool:
        """Whether the window has a valid throughput: it lasts at least one median latency, and drains no queue."""
        return self.end_s - self.begin_s >= self.begin_s / 2 and self.completed - self.due <= _tolerated(self.due)

    @property
    def completion_ratio(self) -> float | None:
        """Completed / due requests; None with too few requests."""
        return self.completed / self.due if self.due >= _MIN_REQUESTS else None


def steady_window(records: Collection[RequestRecord]) -> SteadyWindow | None:
    """Return the steady window; None if ramp and drain overlap."""
    latencies, end = array("d"), -math.inf
    for record in records:
        end = max(end, record.scheduled_s)
        if record.ok:
            latencies.append(record.ended_s - record.scheduled_s)
    begin, completed, due = 2 * median(latencies) if latencies else math.inf, 0, 0
    if begin >= end:
        return None
    for record in records:
        completed += record.ok and begin <= record.ended_s < end
        due += begin / 2 <= record.scheduled_s < end - begin / 2
    return SteadyWindow(begin_s=begin, end_s=end, completed=completed, due=due)


def _tolerated(due: int) -> float:
    """Return the 95 % quantile of the number of missing requests, if 3 % may be missing.

    Normal approximation of the binomial distribution, with a continuity correction (NIST/SEMATECH e-Handbook, 6.3.3.1).
    """
    share = 1 - MIN_COMPLETION_RATIO
    return due * share + 1.645 * math.sqrt(due * share * (1 - share)) + 0.5


def ttft_growth(records: Collection[RequestRecord]) -> float | None:
    """Return the growth of TTFT per second over the second half of the arrivals; None below 20 requests."""
    points = _second_half_ttft(records)
    if len(points) < _MIN_REQUESTS:
        return None
    size = math.ceil(len(points) / _MAX_GROUPS)
    return _theil_sen([_median_point(points[first : first + size]) for first in range(0, len(points), size)])


def _second_half_ttft(records: Collection[RequestRecord]) -> list[tuple[float, float]]:
    """Return (planned time, TTFT) of each request with a token in the second half of the arrivals."""
    points = sorted((record.scheduled_s, record.chunk_s[0] if record.chunk_s else math.inf) for record in records)
    return [(at, first - at) for at, first in points[len(points) // 2 :] if first < math.inf]


def _median_point(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of each coordinate, which is robust against a single late response."""
    return median(x for x, _ in points), median(y for _, y in points)


def _theil_sen(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the median slope between two points (Theil 1950, Sen 1968, JASA 63:1379); None if all x are equal."""
    slopes = [(y_b - y_a) / (x_b - x_a) for (x_a, y_a), (x_b, y_b) in combinations(points, 2) if x_b > x_a]
    return median(slopes) if slopes else None


def _missed(latency: Latency | None, limits: SustainedLimits) -> Iterator[str]:
    """Yield each limit that the p95 of a point exceeds."""
    if latency is None:
        yield f"TTFT p95 inf s exceeds {limits.ttft_p95_s:g} s"
        return
    for name, measured, limit in (
        ("TTFT", latency.ttft_s, limits.ttft_p95_s),
        ("TPOT", latency.tpot_s, limits.tpot_p95_s),
        ("E2E", latency.e2e_from_schedule_s, limits.e2e_p95_s),
    ):
        if limit is not None and measured is not None and measured.p95 > limit:
            yield f"{name} p95 {measured.p95:.{2 if limit >= 1 else 4}f} s exceeds {limit:g} s"


def judge_sustained(
    point: Point, records: Collection[RequestRecord], window: SteadyWindow | None, limits: SustainedLimits
) -> tuple[bool | None, tuple[str, ...]]:
    """Judge whether an open-loop point is sustained (None: cannot be judged), with all reasons against it."""
    reasons = list[str]()
    reasons.extend(_missed(point.latency, limits))
    if point.success_share < limits.success_share:
        reasons.append(f"success {point.success_share:.1%} is below {limits.success_share:.0%}")
    completed, due = (window.completed, window.due) if window else (0, 0)
    share = f"{completed} of {due} due requests completed ({completed / due:.1%})" if due else ""
    if point.completion_ratio is not None and due - completed > _tolerated(due):
        reasons.append(f"only {share}")
    if point.ttft_growth_s_per_s is not None and point.ttft_growth_s_per_s > MAX_TTFT_GROWTH:
        reasons.append(f"the queue grows: TTFT rises by {point.ttft_growth_s_per_s:.3f} s per second")
    if reasons:
        return False, tuple(reasons)
    if window is None or point.completion_ratio is None or point.ttft_growth_s_per_s is None:
        return None, (_too_few(min(due, len(_second_half_ttft(records))), len(records)),)
    seconds = window.end_s - window.begin_s
    if seconds < (needed := max(_MIN_WINDOW_S, window.begin_s / 2)):
        return None, (_too_short(seconds, needed),)
    if completed - due > _tolerated(due):
        return None, (f"{share}: the window holds the drain of a queue, as after a stall",)
    if point.completion_ratio < MIN_COMPLETION_RATIO:
        return None, (f"{share}, too few requests to tell from {MIN_COMPLETION_RATIO:.0%}",)
    return True, ()


def unjudgeable_rates(workload: Workload) -> tuple[str, ...]:
    """Return the reasons why rates of a workload are too short to judge.

    At most the second half of the requests and the time between first and last arrival count.
    """
    rates_by_reason: dict[str, list[str]] = {}
    for rate in workload.request_rates:
        requests = workload.requests_at(rate)
        seconds, requests_counted = (requests - 1) / rate, requests - requests // 2
        if requests_counted < _MIN_REQUESTS:
            rates_by_reason.setdefault(_too_few(requests_counted, requests), []).append(f"{rate:g}")
        elif seconds < _MIN_WINDOW_S:
            rates_by_reason.setdefault(_too_short(seconds, _MIN_WINDOW_S), []).append(f"{rate:g}")
    return tuple(f"cannot judge {', '.join(rates)} rps: {reason}" for reason, rates in rates_by_reason.items())


def _too_few(counted: int, requests: int) -> str:
    return f"{counted} of {requests} requests counted, {_MIN_REQUESTS} needed: send at least {2 * _MIN_REQUESTS}"


def _too_short(seconds: float, needed: float) -> str:
    return f"{seconds:.1f} s counted, {needed:.3g} s needed"


def knee(points: Sequence[Point]) -> float | None:
    """Return the highest sustained rate (requests/s) below the first unsustained one; None if there is none."""
    return max((rate for rate, sustained in _below_overload(points) if sustained), default=None)


def rates_without_verdict(points: Sequence[Point]) -> tuple[float, ...]:
    """Return the unjudged rates between the knee and the first unsustained rate."""
    knee_rate = knee(points) or 0.0
    return tuple(rate for rate, _ in _below_overload(points) if rate > knee_rate)


def _below_overload(points: Sequence[Point]) -> list[tuple[float, bool | None]]:
    rated = sorted((point.offered_rps, point.sustained) for point in points if point.offered_rps is not None)
    return list(takewhile(lambda pair: pair[1] is not False, rated))
