"""`deploy sweep --dry-run`: the search space, the points that cannot fit, and the estimated cost."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from orchestrator.bench.workload import workload_name
from orchestrator.core.console import format_duration, table
from orchestrator.experiments.sweep.run import TRIALS, Sweep

_MAX_POINTS: Final = 500  # that a dry run plans


@dataclass(frozen=True, kw_only=True)
class SweepPreview:
    """The output of `--dry-run`: the space, the number of points that fit, and estimates of the trials.

    `baseline` holds the profile's own values; the estimates include the `confirm` repeats of the best trial.
    """

    profile: str
    description: str
    confirm: int
    space: Mapping[str, list[str]]
    baseline: Mapping[str, str]
    baseline_in_space: bool
    objective: str
    workload: str
    points: int
    checked: int
    fitting: int
    cannot_fit: Mapping[str, int]
    trials: int
    seconds: float
    usd: float | None


def preview_sweep(sweep: Sweep) -> SweepPreview:
    """Plan all points, or the first points of a large space, and estimate the trials."""
    size, hour = sweep.space.size, sweep.usd_per_hour
    reasons = Counter(sweep.infeasible_reason(dict(point)) for point in islice(sweep.space.points(), _MAX_POINTS))
    count, fitting = reasons.total(), reasons.pop("", 0)
    trials = affordable(sweep, fitting if size <= _MAX_POINTS else size)
    seconds = _seconds(sweep, trials)
    return SweepPreview(
        profile=sweep.plan.profile,
        description=sweep.description,
        confirm=sweep.repeats,
        space=sweep.values,
        baseline=sweep.space.display_profile(sweep.base.profile),
        baseline_in_space=sweep.baseline_point is not None,
        objective=sweep.goal.words,
        workload=workload_name(sweep.workload_ref),
        points=size,
        checked=count,
        fitting=fitting,
        cannot_fit=reasons,
        trials=trials,
        seconds=seconds,
        usd=seconds / 3600 * hour if hour else None,
    )


def preview_text(sweep: Sweep, preview: SweepPreview) -> str:
    """Return the summary of a dry run as text."""
    baseline = preview.baseline
    rows = [(key, ", ".join(values), baseline[key]) for key, values in preview.space.items()]
    lines = [preview.description] if preview.description else []
    lines += [table(("setting", "values", f"`{preview.profile}`"), rows), ""]
    lines += [f"`{name}` depends on these settings" for name in sweep.space.coupled]
    lines.append(f"objective: {preview.objective}, under `{preview.workload}`")
    size, count, checked = preview.points, preview.trials, preview.checked
    checked_text = f"{size} points" if checked == size else f"the first {checked} of {size} points"
    lines.append(f"space: {checked_text}: {preview.fitting} can be planned, {checked - preview.fitting} do not fit")
    lines += [f"  {many} do not fit: {reason}" for reason, many in preview.cannot_fit.items()]
    if not preview.baseline_in_space:
        lacks = ", ".join(
            f"`{baseline[key]}` to `{key}`" for key, values in preview.space.items() if baseline[key] not in values
        )
        lines.append(f"`{preview.profile}` is not in the space; to compare with it, add {lacks or 'its values'}")
    repeats = _repeats(sweep)
    extra = f" and {repeats} {'repeats' if repeats > 1 else 'repeat'} of the best (more if another is close)"
    trials = f"{count} {'trials' if count > 1 else 'trial'}{extra if repeats else ''}"
    cost = "" if preview.usd is None else f", ${preview.usd:.2f}"
    per_trial, total = format_duration(sweep.trial_seconds), format_duration(preview.seconds)
    lines.append(f"budget: up to {trials}, each about {per_trial}: {total}{cost}; estimates")
    return "\n".join(lines)


def affordable(sweep: Sweep, points: int) -> int:
    """Estimate the number of trials within the budget: at most `points`, at least one (the first always runs)."""
    budget, hour = sweep.request.budget, sweep.usd_per_hour
    limits = [points]
    limits += [budget.trials] if budget.trials is not None else []
    limits += [int(budget.hours * 3600 / sweep.trial_seconds)] if budget.hours is not None else []
    limits += [int(budget.usd / hour * 3600 / sweep.trial_seconds)] if budget.usd is not None and hour else []
    return min(points, max(1, min(limits if len(limits) > 1 else [*limits, TRIALS])))


def _repeats(sweep: Sweep) -> int:
    return sweep.repeats if len(sweep.goal.names) == 1 else 0


def _seconds(sweep: Sweep, count: int) -> float:
    """Estimate the duration of the trials and of the repeats of the best, within the budget."""
    budget, hour, needed = sweep.request.budget, sweep.usd_per_hour, (count + _repeats(sweep)) * sweep.trial_seconds
    limits = [item for item in (budget.hours, budget.usd / hour if budget.usd and hour else None) if item]
    return max(count * sweep.trial_seconds, min([needed, *(limit * 3600 for limit in limits)]))
