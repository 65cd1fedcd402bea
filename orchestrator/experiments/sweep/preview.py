"""`deploy sweep --dry-run`: the search space, the points that cannot fit, and the estimated cost."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.bench.workload import workload_name
from orchestrator.core.console import format_duration, table
from orchestrator.experiments.sweep.run import TRIALS, Sweep
from orchestrator.experiments.sweep.space import SearchSpace

_MAX_POINTS: Final = 500  # that a dry run plans


@dataclass(frozen=True, kw_only=True)
class SpaceScan:
    """The number of planned points, of fitting points, and of refused points by reason; `whole` if all were planned."""

    count: int
    fitting: int
    refused: Mapping[str, int]
    whole: bool

    def left(self, space: SearchSpace) -> int:
        """Return an upper bound on the number of points to try."""
        return self.fitting if self.whole else space.size


def affordable(sweep: Sweep, points: int) -> int:
    """Estimate the number of trials within the budget, at most `points` and at least one (the first always runs)."""
    budget, hour = sweep.request.budget, sweep.usd_per_hour
    limits = [points]
    limits += [budget.trials] if budget.trials is not None else []
    limits += [int(budget.hours * 3600 / sweep.about)] if budget.hours is not None else []
    limits += [int(budget.usd / hour * 3600 / sweep.about)] if budget.usd is not None and hour else []
    return min(points, max(1, min(limits if len(limits) > 1 else [*limits, TRIALS])))


def dry_text(sweep: Sweep, looked: SpaceScan) -> str:
    """Return the summary of a dry run as text."""
    own = sweep.space.shown_own(sweep.base.profile)
    rows = [(key, ", ".join(values), own[key]) for key, values in sweep.values.items()]
    lines = [sweep.description] if sweep.description else []
    lines += [table(("setting", "values", f"`{sweep.plan.profile}`"), rows), ""]
    lines += [f"`{name}` changes with these values" for name in sweep.space.coupled]
    lines.append(f"objective: {sweep.goal.words}, under `{workload_name(sweep.workload_named)}`")
    size, count = sweep.space.size, affordable(sweep, looked.left(sweep.space))
    of = f"{size} points" if looked.whole else f"{looked.count} of {size} points, at random"
    lines.append(f"space: {of}: {looked.fitting} can be planned, {looked.count - looked.fitting} do not fit")
    lines += [f"  {many} do not fit: {reason}" for reason, many in looked.refused.items()]
    if sweep.own is None:
        lines.append(
            f"`{sweep.plan.profile}` itself is not a trial: the space lacks some of its values (`null`: not set)"
        )
    cost = f", ${count * sweep.about / 3600 * sweep.usd_per_hour:.2f}" if sweep.usd_per_hour else ""
    lines.append(
        f"budget: up to {count} trials of about {format_duration(sweep.about)}: "
        f"{format_duration(count * sweep.about)}{cost}; estimates"
    )
    if sweep.repeats and len(sweep.goal.names) == 1:
        lines.append(f"the best trial is measured {sweep.repeats + 1} times, within the same budget")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class SweepPreview:
    """With `--dry-run`: the space, how many points fit, and the number, duration and cost of the trials (estimates).

    `own` are the values of the profile itself; the best is measured `confirm` times more.
    """

    profile: str
    description: str
    confirm: int
    space: Mapping[str, list[str]]
    own: Mapping[str, str]
    own_is_tried: bool
    objective: str
    workload: str
    points: int
    looked_at: int
    fitting: int
    cannot_fit: Mapping[str, int]
    trials: int
    seconds: float
    usd: float | None


def dry_output(sweep: Sweep, looked: SpaceScan) -> SweepPreview:
    """Return the summary of a dry run for JSON."""
    count = affordable(sweep, looked.left(sweep.space))
    return SweepPreview(
        profile=sweep.plan.profile,
        description=sweep.description,
        confirm=sweep.repeats,
        space=sweep.values,
        own=sweep.space.shown_own(sweep.base.profile),
        own_is_tried=sweep.own is not None,
        objective=sweep.goal.words,
        workload=workload_name(sweep.workload_named),
        points=sweep.space.size,
        looked_at=looked.count,
        fitting=looked.fitting,
        cannot_fit=looked.refused,
        trials=count,
        seconds=count * sweep.about,
        usd=count * sweep.about / 3600 * sweep.usd_per_hour if sweep.usd_per_hour else None,
    )


def scan_space(sweep: Sweep) -> SpaceScan:
    """Plan all points, or a random sample of a large space."""
    whole = sweep.space.size <= _MAX_POINTS
    points = sweep.space.points() if whole else _random_points(sweep.space, sweep.request.seed)
    reasons = Counter(sweep.refusal(dict(point)) for point in points)
    count, fitting = reasons.total(), reasons.pop("", 0)
    return SpaceScan(count=count, fitting=fitting, refused=reasons, whole=whole)


def _random_points(space: SearchSpace, seed: int) -> Iterator[dict[str, int]]:
    generator = random.Random(seed)  # noqa: S311 - not for security
    for _ in range(_MAX_POINTS):
        yield {knob.key: generator.randrange(len(knob.values)) for knob in space.knobs}
