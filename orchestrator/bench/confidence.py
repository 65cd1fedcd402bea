"""What several runs of one configuration tell: a mean with its interval, and whether a change is more than noise. Pure.

Intervals are 95 %, of the mean, by Student's t; between two configurations by Welch's test, which does not take their
noise for equal (Welch 1947, Biometrika 34:28). One run gives a figure and no interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

# The 97.5 % point of Student's t with 1, 2, … 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2); above that
# the last is taken, which makes an interval too wide by 4 % at most.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One figure over all runs of a configuration, in its own unit."""

    mean: float
    runs: int
    deviation: float | None  # between runs; None of one run

    @property
    def half(self) -> float | None:
        """Half of the interval around the mean; None of one run."""
        if self.deviation is None:
            return None
        return _t(self.runs - 1) * self.deviation / math.sqrt(self.runs)


@dataclass(frozen=True, kw_only=True)
class Change:
    """How far one mean lies from another, as a share of that other; without `low` and `high` noise is not known."""

    share: float
    low: float | None = None
    high: float | None = None

    @property
    def told(self) -> bool | None:
        """Whether it is more than noise; None where that is not known."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float]) -> Estimate | None:
    """The figure over all runs; None without one."""
    if not values:
        return None
    deviation = stdev(values) if len(values) > 1 else None
    return Estimate(mean=fmean(values), runs=len(values), deviation=deviation)


def change(base: Estimate, other: Estimate) -> Change | None:
    """`other` against `base`; None where the base is 0."""
    if not base.mean:
        return None
    share = other.mean / base.mean - 1
    if base.deviation is None or other.deviation is None:
        return Change(share=share)
    parts = [each.deviation**2 / each.runs for each in (base, other) if each.deviation is not None]
    degrees = sum(parts) ** 2 / weight if (weight := _weight(parts, (base.runs, other.runs))) else 1.0
    half = _t(math.floor(degrees)) * math.sqrt(sum(parts)) / abs(base.mean)
    return Change(share=share, low=max(share - half, -1.0), high=share + half)  # nothing here is less than nothing


def _weight(parts: Sequence[float], runs: Sequence[int]) -> float:
    """The denominator of Welch's degrees of freedom."""
    return sum(part**2 / (count - 1) for part, count in zip(parts, runs, strict=True))


def _t(degrees: int) -> float:
    return _T[min(max(degrees, 1), len(_T)) - 1]
