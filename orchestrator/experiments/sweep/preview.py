"""`deploy sweep --dry-run`: the search space, the points that cannot fit, and the estimated cost."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.bench.workload import workload_name
from orchestrator.core.console import format_duration, table
from orchestrator.experiments.sweep.objective import Objective
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
    if rate := _sustained_alike(sweep):
        lines.append(
            f"  all values that sustain {rate:g} requests/s deliver the same tok/s: "
            "choose a rate that not all sustain, or the objective `knee` or `pareto`"
        )
    size, count = sweep.space.size, affordable(sweep, looked.left(sweep.space))
    of = f"{size} points" if looked.whole else f"{looked.count} of {size} points, at random"
    lines.append(f"space: {of}: {looked.fitting} can be planned, {looked.count - looked.fitting} do not fit")
    lines += [f"  {many} do not fit: {reason}" for reason, many in looked.refused.items()]
    if sweep.own is None:
        lacks = ", ".join(f"`{own[key]}` to `{key}`" for key, values in sweep.values.items() if own[key] not in values)
        lines.append(f"`{sweep.plan.profile}` itself is not a trial; to compare with it, add {lacks or 'its values'}")
    repeats, seconds = _repeats(sweep), _seconds(sweep, count)
    cost = f", ${seconds / 3600 * sweep.usd_per_hour:.2f}" if sweep.usd_per_hour else ""
    more = (
        f" and {repeats} {'repeats' if repeats > 1 else 'repeat'} of the best (more if another is close)"
        if repeats
        else ""
    )
    trials = f"{count} {'trials' if count > 1 else 'trial'}{more}, each about {format_duration(sweep.about)}"
    lines.append(f"budget: up to {trials}: {format_duration(seconds)}{cost}; estimates")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class SweepPreview:
    """With `--dry-run`: the space, how many points fit, and the number, duration and cost of the trials (estimates).

    `own` are the values of the profile itself; the estimates include the `confirm` repeats of the best.
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
    seconds = _seconds(sweep, count)
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
        seconds=seconds,
        usd=seconds / 3600 * sweep.usd_per_hour if sweep.usd_per_hour else None,
    )


def _sustained_alike(sweep: Sweep) -> float | None:
    """Return the only rate of an open load, if it and not the server may decide the objective."""
    goal, load = sweep.goal, sweep.workload
    if goal.closed or goal.objective not in {Objective.TOK_S, Objective.USD}:
        return None
    return goal.at_rps or (load.request_rates[0] if len(load.request_rates) == 1 and not load.ramp else None)


def _repeats(sweep: Sweep) -> int:
    return sweep.repeats if len(sweep.goal.names) == 1 else 0


def _seconds(sweep: Sweep, count: int) -> float:
    """Estimate the duration of the trials and of the repeats of the best, within the budget."""
    budget, hour, needed = sweep.request.budget, sweep.usd_per_hour, (count + _repeats(sweep)) * sweep.about
    limits = [each for each in (budget.hours, budget.usd / hour if budget.usd and hour else None) if each]
    return max(count * sweep.about, min([needed, *(limit * 3600 for limit in limits)]))


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
