"""Significance tests for the difference of two eval results. Pure.

Shares are between 0 and 1, intervals have 95 % confidence by default, a difference is candidate - baseline.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Final

from orchestrator.evals.eval_result import EvalResult

CONFIDENCE: Final = 0.95
POWER: Final = 0.80
_MAX_STEPS: Final = 1 << 18  # limit of the exact test; beyond it the normal approximation is accurate


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class SignificanceTest:
    """The test of a difference of two scores.

    `answers` is the effective sample size. `detectable` is the smallest difference that two samples of this size detect
    with 80 % power. `answers_needed` is the sample size that would detect the observed difference; None if it is 0.
    """

    baseline: float
    candidate: float
    answers: int
    difference: float
    interval: Interval
    p_value: float | None  # from the paired test; None for different questions
    lost: int | None  # correct in the baseline, wrong in the candidate
    gained: int | None
    significant: bool
    detectable: float
    answers_needed: int | None
    method: str
    test: str = "exact McNemar"  # name of the test

    @property
    def sentence(self) -> str:
        """The result of the test as one sentence."""
        span = f"{self.difference:+.3f}, 95 % interval {self.interval.low:+.3f} to {self.interval.high:+.3f}"
        tested = f"{span}, {self.test} p = {self.p_value:.3g}" if self.p_value is not None else span
        if self.significant:
            return f"{'better' if self.difference > 0 else 'worse'}: {tested}"
        needed = (
            f"; this difference needs about {self.answers_needed:,} questions per side" if self.answers_needed else ""
        )
        text = f"{self.answers} answers detect {self.detectable:.3f} or more{needed}"
        return f"not significant at this sample size: {tested}; {text}"


def wilson(share: float, size: float) -> Interval:
    """Return the Wilson score interval of a share; `share * size` need not be an integer (Wilson 1927)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    shrink = 1 + z * z / size
    middle = (share + z * z / (2 * size)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    return Interval(low=max(0.0, middle - half), high=min(1.0, middle + half))


def independent_interval(*, baseline: float, candidate: float, sizes: tuple[float, float]) -> Interval:
    """Return the interval of the difference of two independent shares (Newcombe 1998, Stat Med 17:873, method 10)."""
    base, cand = wilson(baseline, sizes[0]), wilson(candidate, sizes[1])
    difference = candidate - baseline
    return Interval(
        low=difference - math.hypot(candidate - cand.low, base.high - baseline),
        high=difference + math.hypot(cand.high - candidate, baseline - base.low),
    )


def score_interval(result: EvalResult) -> Interval:
    """Return the Wilson interval of a score at its effective sample size."""
    return wilson(result.score, result.effective_answers)


def paired_interval(groups: Sequence[Sequence[Fraction]]) -> Interval:
    """Return the interval of the difference of two scores over the same questions; groups have equal weight.

    `groups` has the difference in the share of correct answers for each question. With one answer per side, this is
    the interval of Agresti and Min 2005 (Stat Med 24:729), which adds half a question to each of the four cells of a
    group, so that the width is above 0 even without discordant pairs.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = variance = 0.0
    for group in groups:
        total, change = len(group) + 2, float(sum(group))
        middle += change / total / len(groups)
        squares = float(sum(share * share for share in group)) + 1
        variance += (squares - change**2 / total) / (total * len(groups)) ** 2
    half = z * math.sqrt(variance)
    return Interval(low=max(-1.0, middle - half), high=min(1.0, middle + half))


def sign_flip(groups: Sequence[Sequence[Fraction]]) -> float:
    """Return the two-sided p-value of the sign-flip test; groups of any size have equal weight.

    The null hypothesis: each difference is equally likely with either sign. With one answer per side to each question,
    this is the exact McNemar test. It counts all choices of signs, and uses the normal approximation beyond
    `_MAX_STEPS`.
    """
    weights = [Fraction(math.lcm(*map(len, groups)), len(group)) for group in groups]
    shares = [share * weight for group, weight in zip(groups, weights, strict=True) for share in group if share]
    if not shares:
        return 1.0
    unit = math.lcm(*(share.denominator for share in shares))
    units = [int(share * unit) for share in shares]
    unit = math.gcd(*units)
    sizes, observed = [abs(item) // unit for item in units], abs(sum(units)) // unit
    if sum(sizes) > _MAX_STEPS:
        return 2 * NormalDist().cdf(-observed / math.sqrt(sum(size * size for size in sizes)))
    # Subset sums by dynamic programming in one integer: slot i has `width` bytes and counts the subsets with sum i.
    width, counts = len(sizes) // 8 + 1, 1
    for size in sizes:
        counts += counts << (8 * width * size)
    lower = counts.to_bytes(width * (sum(sizes) + 1), "little")[: width * ((sum(sizes) - observed) // 2 + 1)]
    tail = sum(int.from_bytes(lower[at : at + width], "little") for at in range(0, len(lower), width))
    return min(1.0, float(Fraction(2 * tail, 1 << len(sizes))))


def minimum_detectable_difference(share: float, size: float) -> float:
    """Return the smallest difference from `share` that two samples detect at 5 % with 80 % power (normal theory)."""
    return _power_z() * math.sqrt(2 * share * (1 - share) / size)


def required_sample_size(share: float, difference: float) -> int | None:
    """Return the size of two independent samples that detect `difference` at 5 % with 80 % power; None for 0."""
    if difference == 0:
        return None
    return math.ceil(2 * share * (1 - share) * (_power_z() / difference) ** 2)


def _power_z() -> float:
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2) + NormalDist().inv_cdf(POWER)


def compare_independent(*, baseline: float, candidate: float, sizes: tuple[float, float]) -> SignificanceTest:
    """Compare two scores as independent samples; `sizes` are those of baseline and candidate."""
    interval = independent_interval(baseline=baseline, candidate=candidate, sizes=sizes)
    middle, fewer = (baseline + candidate) / 2, min(sizes)
    return SignificanceTest(
        baseline=baseline,
        candidate=candidate,
        answers=round(fewer),
        difference=candidate - baseline,
        interval=interval,
        p_value=None,
        lost=None,
        gained=None,
        significant=not interval.low <= 0 <= interval.high,
        detectable=minimum_detectable_difference(middle, fewer),
        answers_needed=required_sample_size(middle, candidate - baseline),
        method="independent samples, Newcombe's interval",
    )


def compare_results(baseline: EvalResult, candidate: EvalResult) -> SignificanceTest:
    """Compare two results: paired if questions and number of answers match, else as independent samples."""
    before, after = baseline.answers, candidate.answers
    sizes = (baseline.effective_answers, candidate.effective_answers)
    independent = compare_independent(baseline=baseline.score, candidate=candidate.score, sizes=sizes)
    if before.keys() != after.keys() or any(len(before[question]) != len(after[question]) for question in before):
        return independent
    changes: dict[str, list[Fraction]] = {}
    for question, answers in before.items():
        change = Fraction(sum(after[question]) - sum(answers), len(answers))
        changes.setdefault(question.group, []).append(change)
    groups = tuple(changes.values())
    exact = len(before) == len(baseline.answered) and len(groups) == 1
    p_value, flat = sign_flip(groups), [change for group in groups for change in group]
    return replace(
        independent,
        interval=paired_interval(groups),
        p_value=p_value,
        lost=sum(change < 0 for change in flat),
        gained=sum(change > 0 for change in flat),
        significant=p_value < 1 - CONFIDENCE,
        method="the same questions, exact McNemar test, Agresti-Min interval"
        if exact
        else "the same questions, clustered by question: sign-flip test, Agresti-Min interval",
        test="exact McNemar" if exact else "sign-flip",
    )
