"""Statistics over repeated runs: the mean with its 95 % interval, and the significance of a change. Pure.

The interval of a mean follows Student's t; the interval of a change follows Welch's test, which allows unequal
variances (Welch 1947, Biometrika 34:28). A single run has no interval; compared with several runs, it is assumed to
have their variance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

# The 97.5 % point of Student's t with 1, 2, … 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2); above
# 30, the last value widens an interval by 4 % at most.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One metric over all runs of a configuration, in the unit of the metric."""

    mean: float
    runs: int
    deviation: float | None  # standard deviation between runs; None for one run

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % interval around the mean; None for one run."""
        if self.deviation is None:
            return None
        return _t(self.runs - 1) * self.deviation / math.sqrt(self.runs)


@dataclass(frozen=True, kw_only=True)
class Change:
    """The relative change of a mean, with its 95 % interval `low` to `high`; both None if the variance is unknown."""

    share: float
    low: float | None = None
    high: float | None = None

    @property
    def is_significant(self) -> bool | None:
        """Whether the interval excludes 0; None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean over all runs, or None without any."""
    if not values:
        return None
    deviation = stdev(values) if len(values) > 1 else None
    return Estimate(mean=fmean(values), runs=len(values), deviation=deviation)


def change(base: Estimate, other: Estimate) -> Change | None:
    """Return the change from `base` to `other`, or None if the base is 0."""
    if not base.mean:
        return None
    share = other.mean / base.mean - 1
    deviations = [item.deviation for item in (base, other) if item.deviation is not None]
    if not deviations:
        return Change(share=share)
    variances = [
        (deviations[0] if item.deviation is None else item.deviation) ** 2 / item.runs for item in (base, other)
    ]
    if len(deviations) == 1:
        degrees: float = base.runs + other.runs - 2  # Student's test
    else:
        weight = sum(variance**2 / (item.runs - 1) for variance, item in zip(variances, (base, other), strict=True))
        degrees = sum(variances) ** 2 / weight if weight else 1.0
    margin = _t(math.floor(degrees)) * math.sqrt(sum(variances)) / abs(base.mean)
    return Change(share=share, low=max(share - margin, -1.0), high=share + margin)  # metrics are never negative


def _t(degrees: int) -> float:
    return _T[min(max(degrees, 1), len(_T)) - 1]
