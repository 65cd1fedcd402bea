"""When a load is sustained: the steady window, the growth of the wait, and the knee.

**Steady window**: from two median end-to-end latencies after the first planned arrival (by then the batch is full) to
the last planned arrival (from then on it drains). Shorter than one median latency it sees a part of what a request goes
through, its prefill or its decode, and shows no rate: overloaded, four H200 gave 8,889 tok/s over 22 s and 5,905 in a
window of 0.46 s.

**Completion ratio**: of the requests planned one median latency earlier than the window, the share that was completed
within it. A server that gives 1.9 rps of 2.0 offered shows 0.95, whatever the arrivals' own noise.

**Growth**: the slope of TTFT over planned time (Theil-Sen, second half of the arrivals), in seconds of wait gained a
second. A server that gives mu of lambda rps lets the wait grow by lambda/mu - 1: the limit of 0.03 is the same 97 %
seen from the queue. Above 400 requests the slopes are those between the medians of groups of neighbors, at most 200 of
them: 19,900 slopes, however many requests there are.

A point is **sustained** when TTFT p95 (from schedule) and success meet the workload's limits, the completion ratio is
at least 0.97 and the growth at most 0.03. Too few requests or seconds in the window to tell, or a window that shows no
rate: None, and never the knee.
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
GROWTH_AT_MOST: Final = 0.03
_FEWEST: Final = 20  # completions in the window below which a share of 0.97 cannot be told from 1
_SHORTEST: Final = 5.0  # seconds of window below which a burst that no server could keep up with may look served
_MOST_GROUPS: Final = 200


def steady_window(samples: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """Begin and end in seconds after the first planned arrival; None where ramp and drain leave nothing between."""
    done = [sample.ended_s - sample.scheduled_s for sample in samples if sample.ok]
    if not done:
        return None
    begin, end = 2 * median(done), max(sample.scheduled_s for sample in samples)
    return (begin, end) if begin < end else None


def is_long_enough(window: tuple[float, float]) -> bool:
    """Whether it is long enough for tokens and completions a second."""
    begin, end = window
    return end - begin >= begin / 2  # one median latency


def completion_ratio(samples: Sequence[RequestRecord], window: tuple[float, float]) -> float | None:
    """Completions in the window over the arrivals one median latency earlier; None where they are too few to tell."""
    begin, end = window
    due = _due(samples, window)
    completed = sum(sample.ok and begin <= sample.ended_s < end for sample in samples)
    return completed / due if due >= _FEWEST else None


def _due(samples: Sequence[RequestRecord], window: tuple[float, float]) -> int:
    """The arrivals whose completions are due in the window."""
    begin, end = window
    return sum(begin / 2 <= sample.scheduled_s < end - begin / 2 for sample in samples)


def ttft_growth(samples: Sequence[RequestRecord]) -> float | None:
    """Seconds of TTFT gained per second of load over the second half of the arrivals; None below 20 requests there."""
    points = _later(samples)
    if len(points) < _FEWEST:
        return None
    size = math.ceil(len(points) / _MOST_GROUPS)
    return _theil_sen([_middle(points[first : first + size]) for first in range(0, len(points), size)])


def _later(samples: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """When each answered request of the second half was due, and its TTFT."""
    later = sorted(samples, key=lambda sample: sample.scheduled_s)[len(samples) // 2 :]
    return [(sample.scheduled_s, sample.chunk_s[0] - sample.scheduled_s) for sample in later if sample.chunk_s]


def _middle(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The median of each coordinate: one late answer among neighbors does not move it."""
    return median(x for x, _ in points), median(y for _, y in points)


def _theil_sen(points: Sequence[tuple[float, float]]) -> float | None:
    """The median slope between two points (Theil 1950, Sen 1968, JASA 63:1379); None where all stand at one x."""
    slopes = [(y_b - y_a) / (x_b - x_a) for (x_a, y_a), (x_b, y_b) in combinations(points, 2) if x_b > x_a]
    return median(slopes) if slopes else None


def judge_sustained(
    point: Point, samples: Sequence[RequestRecord], limits: SustainedLimits
) -> tuple[bool | None, tuple[str, ...]]:
    """Whether an open-loop point is sustained, and every reason why not (or why it cannot be told)."""
    reasons = []
    ttft = point.latency.ttft_from_schedule_s.p95 if point.latency else math.inf
    if ttft > limits.ttft_p95_s:
        reasons.append(f"TTFT p95 {ttft:.2f} s is over {limits.ttft_p95_s:g} s")
    if point.success_share < limits.success_share:
        reasons.append(f"success {point.success_share:.1%} is under {limits.success_share:.0%}")
    if point.completion_ratio is not None and point.completion_ratio < MIN_COMPLETION_RATIO:
        reasons.append(f"only {point.completion_ratio:.1%} of the offered rate was completed")
    if point.ttft_growth_s_per_s is not None and point.ttft_growth_s_per_s > GROWTH_AT_MOST:
        reasons.append(f"the queue grows: TTFT rises by {point.ttft_growth_s_per_s:.3f} s a second")
    if reasons:
        return False, tuple(reasons)
    begin, end = steady_window(samples) or (0.0, 0.0)
    if point.completion_ratio is None or point.ttft_growth_s_per_s is None:
        counted = min(_due(samples, (begin, end)), len(_later(samples)))
        return None, (_too_few(counted, len(samples)),)
    if end - begin < (needed := max(_SHORTEST, begin / 2)):
        return None, (_too_short(end - begin, needed),)
    return True, ()


def unjudgeable_rates(workload: Workload) -> tuple[tuple[str, ...], str]:
    """Why rates of a workload will not be judged, as far as that is known before it is sent, and what would do.

    Of the requests the second half is counted at most, of the seconds those between the first and the last arrival.
    """
    found: dict[str, list[str]] = {}
    hint = f"`--requests {2 * _FEWEST}`"
    for rate in workload.request_rates:
        requests = workload.requests_at(rate)
        short = (requests - 1) / rate < _SHORTEST
        if (counted := requests - requests // 2) < _FEWEST:
            found.setdefault(_too_few(counted, requests), []).append(f"{rate:g}")
        elif short:
            found.setdefault(_too_short((requests - 1) / rate, _SHORTEST), []).append(f"{rate:g}")
        if short or workload.duration_s is not None:
            hint = f"`--duration {max(2 * _SHORTEST, math.ceil(2 * _FEWEST / min(workload.request_rates))):g}`"
    return tuple(f"{', '.join(rates)} rps will not be judged: {reason}" for reason, rates in found.items()), hint


def _too_few(counted: int, requests: int) -> str:
    return f"{counted} of {requests} requests counted, {_FEWEST} needed"


def _too_short(seconds: float, needed: float) -> str:
    return f"{seconds:.1f} s counted, {needed:.3g} s needed"


def knee(points: Sequence[Point]) -> float | None:
    """The highest sustained rate in requests per second, below the first rate that was not; None without one."""
    best = None
    for point in sorted((p for p in points if p.offered_rps is not None), key=lambda p: p.offered_rps or 0.0):
        if point.sustained is False:
            break
        best = point.offered_rps if point.sustained else best
    return best
