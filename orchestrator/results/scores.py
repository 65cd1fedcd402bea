"""What an evaluation gave, as a file too, and what the difference of two of them can tell.

A share is a part of 1, an interval is 95 % unless another confidence is given, a difference is candidate - baseline.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from pydantic import TypeAdapter

from orchestrator.core.errors import BenchError
from orchestrator.results.result import read_strictly

OUTCOME_SCHEMA: Final = 1
CONFIDENCE: Final = 0.95
POWER: Final = 0.80


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Item:
    """One answered question; `id` names the question wherever it is asked."""

    id: str
    right: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One evaluation of one served model. `metric` and `task` are lm-evaluation-harness's own names."""

    schema_version: int
    suite: str
    task: str
    metric: str
    model: str
    harness: str  # its name and version
    command: str
    items: tuple[Item, ...]

    @property
    def score(self) -> float:
        """Share of right answers."""
        return sum(item.right for item in self.items) / len(self.items)


_OUTCOME: Final = TypeAdapter(Outcome)


def outcome_file(suite: str) -> str:
    """What the file of a suite's outcome is called; `deploy report` looks for it."""
    return f"eval-{suite}.json"


def outcome_to_json(outcome: Outcome) -> str:
    """The outcome as JSON text."""
    return _OUTCOME.dump_json(outcome, indent=1).decode() + "\n"


def outcome_from_json(text: str, *, where: str) -> Outcome:
    """Read an outcome; `where` names its origin. Raises BenchError for another schema or a damaged file."""
    outcome = read_strictly(_OUTCOME, text, what="outcome of `deploy eval`", where=where)
    if outcome.schema_version != OUTCOME_SCHEMA or not outcome.items:
        raise BenchError("an outcome of another version, or an empty one", where=where, hint="evaluate again")
    return outcome


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a difference of two scores can tell.

    `detectable` is the smallest difference that two samples of this size would show with 80 % power, `items_needed` how
    many questions each side would need to show the difference that was seen; None where no number would.
    """

    baseline: float
    candidate: float
    items: int
    difference: float
    interval: Interval
    p_value: float | None  # of the exact paired test; None where the items are not the same
    lost: int | None  # right before, wrong now
    gained: int | None
    significant: bool
    detectable: float
    items_needed: int | None
    method: str

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        span = f"{self.difference:+.3f}, 95 % interval {self.interval.low:+.3f} to {self.interval.high:+.3f}"
        tested = f"{span}, exact McNemar p = {self.p_value:.3g}" if self.p_value is not None else span
        if self.significant:
            return f"{'better' if self.difference > 0 else 'worse'}: {tested}"
        needed = f", this difference needs about {self.items_needed:,} on each side" if self.items_needed else ""
        shown = f"{self.items} items show {self.detectable:.3f} or more{needed}"
        return f"cannot tell apart at this sample size: {tested}; {shown}"


def wilson(share: float, items: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a share; `share * items` need not be whole (Wilson 1927)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    shrink = 1 + z * z / items
    middle = (share + z * z / (2 * items)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items))
    return Interval(low=max(0.0, middle - half), high=min(1.0, middle + half))


def independent_interval(*, baseline: float, candidate: float, items: tuple[int, int]) -> Interval:
    """Interval of the difference of two independent shares (Newcombe 1998, Stat Med 17:873, method 10)."""
    base, cand = wilson(baseline, items[0]), wilson(candidate, items[1])
    difference = candidate - baseline
    return Interval(
        low=difference - math.hypot(candidate - cand.low, base.high - baseline),
        high=difference + math.hypot(cand.high - candidate, baseline - base.low),
    )


def paired_interval(*, lost: int, gained: int, items: int, confidence: float = CONFIDENCE) -> Interval:
    """Interval of the difference of two shares over the same items (Agresti and Min 2005, Stat Med 24:729).

    Half an item is added to each of the four cells, so that no discordant pair at all does not give a width of 0.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    total, down, up = items + 2, lost + 0.5, gained + 0.5
    middle = (up - down) / total
    half = z * math.sqrt(down + up - (up - down) ** 2 / total) / total
    return Interval(low=max(-1.0, middle - half), high=min(1.0, middle + half))


def mcnemar(*, lost: int, gained: int) -> float:
    """Two-sided p of the exact McNemar test: how odd this split is if either direction were as likely."""
    discordant = lost + gained
    tail = sum(math.comb(discordant, count) for count in range(min(lost, gained) + 1))
    return min(1.0, 2 * tail / (1 << discordant))


def detectable_difference(share: float, items: int) -> float:
    """The smallest difference from `share` that two independent samples show at 5 % with 80 % power (normal theory)."""
    return _power_z() * math.sqrt(2 * share * (1 - share) / items)


def items_to_show(share: float, difference: float) -> int | None:
    """Questions each of two independent samples needs to show `difference` at 5 % with 80 % power."""
    if difference == 0:
        return None
    return math.ceil(2 * share * (1 - share) * (_power_z() / difference) ** 2)


def _power_z() -> float:
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2) + NormalDist().inv_cdf(POWER)


def judge_independent(*, baseline: float, candidate: float, items: tuple[int, int]) -> Judgement:
    """What two scores of different (or unknown) items can tell; `items` are the sizes of baseline and candidate."""
    interval = independent_interval(baseline=baseline, candidate=candidate, items=items)
    middle, fewer = (baseline + candidate) / 2, min(items)
    return Judgement(
        baseline=baseline,
        candidate=candidate,
        items=fewer,
        difference=candidate - baseline,
        interval=interval,
        p_value=None,
        lost=None,
        gained=None,
        significant=not interval.low <= 0 <= interval.high,
        detectable=detectable_difference(middle, fewer),
        items_needed=items_to_show(middle, candidate - baseline),
        method="independent samples, Newcombe's interval",
    )


def judge_paired(baseline: Outcome, candidate: Outcome) -> Judgement:
    """What two outcomes over the same items can tell. Raises ValueError where the items differ."""
    before, after = dict(_keyed(baseline)), dict(_keyed(candidate))
    if before.keys() != after.keys():
        raise ValueError("the items differ")
    lost = sum(before[key] and not after[key] for key in before)
    gained = sum(after[key] and not before[key] for key in before)
    p_value = mcnemar(lost=lost, gained=gained)
    middle = (baseline.score + candidate.score) / 2
    return Judgement(
        baseline=baseline.score,
        candidate=candidate.score,
        items=len(before),
        difference=candidate.score - baseline.score,
        interval=paired_interval(lost=lost, gained=gained, items=len(before)),
        p_value=p_value,
        lost=lost,
        gained=gained,
        significant=p_value < 1 - CONFIDENCE,
        detectable=detectable_difference(middle, len(before)),
        items_needed=items_to_show(middle, candidate.score - baseline.score),
        method="the same items, exact McNemar test, Agresti-Min interval",
    )


def judge_outcomes(baseline: Outcome, candidate: Outcome) -> Judgement:
    """The paired test where the items are the same, else two independent samples."""
    if sorted(key for key, _ in _keyed(baseline)) == sorted(key for key, _ in _keyed(candidate)):
        return judge_paired(baseline, candidate)
    sizes = (len(baseline.items), len(candidate.items))
    return judge_independent(baseline=baseline.score, candidate=candidate.score, items=sizes)


def _keyed(outcome: Outcome) -> list[tuple[tuple[str, int], bool]]:
    """Items with a key that stays unique where a question was asked several times."""
    seen: dict[str, int] = {}
    keyed = []
    for item in outcome.items:
        seen[item.id] = seen.get(item.id, 0) + 1
        keyed.append(((item.id, seen[item.id]), item.right))
    return keyed
