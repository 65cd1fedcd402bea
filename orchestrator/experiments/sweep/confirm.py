"""Confirmation of a sweep's best trials by repeated runs, because a single run does not show noise. Pure."""

import math
from collections import Counter
from statistics import median
from typing import Final

from orchestrator.bench.confidence import change, estimate
from orchestrator.experiments.sweep.run import Sweep
from orchestrator.experiments.sweep.search import Search, SweepTrial, TrialOutcome
from orchestrator.report.side_by_side import change_text

_MAX_TRIALS: Final = 3  # maximum trials to confirm; many equal trials would take the lead in turn


def runs_of(search: Search, trial: SweepTrial) -> tuple[float, ...]:
    """Return the value of each run of a trial, for a single objective."""
    return (trial.values[0], *(repeat.values[0] for repeat in search.repeats_of(trial) if repeat.values))


def middle(sweep: Sweep, search: Search, trial: SweepTrial) -> float:
    """Return the median of a trial's runs; a run without a value counts as worst if the client was on time."""
    worst = -math.inf if sweep.goal.higher_is_better[0] else math.inf
    failed = [repeat for repeat in search.repeats_of(trial) if not repeat.values]
    worst_values = [worst for repeat in failed if repeat.outcome is not TrialOutcome.LAGGED]
    return median((*runs_of(search, trial), *worst_values))


def ranked(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the measured trials by the median of their runs, best first, for a single objective."""
    sign = -1 if sweep.goal.higher_is_better[0] else 1
    measured = [trial for trial in search.trials if trial.values and math.isfinite(middle(sweep, search, trial))]
    return tuple(sorted(measured, key=lambda trial: sign * middle(sweep, search, trial)))


def confirmed(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the best confirmed trials, including ties; if none is confirmed, the best of all."""
    repeated = {confirmation.number for confirmation in search.confirmations}
    order = ranked(sweep, search)
    order = tuple(trial for trial in order if trial.number in repeated) or order
    best = [middle(sweep, search, trial) for trial in order[:1]]
    return tuple(trial for trial in order if middle(sweep, search, trial) in best)


def next_to_confirm(sweep: Sweep, search: Search) -> SweepTrial | None:
    """Return the next trial to confirm: the best, then the second best if within the best's range; else None."""
    if not sweep.repeats or len(sweep.goal.names) > 1:
        return None
    counts = Counter(confirmation.number for confirmation in search.confirmations)
    order = ranked(sweep, search)
    for trial in order[:2]:
        if counts[trial.number] < sweep.repeats and (len(counts) < _MAX_TRIALS or trial.number in counts):
            return trial if trial is order[0] or _is_as_good(sweep, search, order[0], trial) else None
    return None


def _is_as_good(sweep: Sweep, search: Search, best: SweepTrial, other: SweepTrial) -> bool:
    """Return whether the median of `other` is not worse than the worst run of `best`."""
    value, runs = middle(sweep, search, other), runs_of(search, best)
    return value >= min(runs) if sweep.goal.higher_is_better[0] else value <= max(runs)


def describe_runs(sweep: Sweep, search: Search, trial: SweepTrial) -> str:
    """Describe the runs of a trial: their number and values, or why they have none."""
    failed = [repeat for repeat in search.repeats_of(trial) if not repeat.values]
    runs = [sweep.goal.text((value,)) for value in runs_of(search, trial)]
    runs += [f"{item.outcome} ({item.reason})" for item in failed]
    return f"{len(runs)} runs: {', '.join(runs)}" if len(runs) > 1 else "one run"


def describe_difference(sweep: Sweep, search: Search, best: SweepTrial) -> str:
    """Compare a trial's lead over the next with the noise; "" for a single trial or a Pareto front."""
    other_trials = [trial for trial in ranked(sweep, search) if trial.number != best.number]
    if len(sweep.goal.names) > 1 or not other_trials:
        return ""
    base, other = (estimate(runs_of(search, trial)) for trial in (other_trials[0], best))
    difference = change(base, other) if base and other else None
    names = [
        f"`{sweep.plan.profile}`" if trial.is_baseline else f"trial {trial.number}" for trial in (best, other_trials[0])
    ]
    both = " and ".join(names)
    if difference is None or difference.is_significant is None:
        return f"The noise is not known: {both} have one value each"
    relation = f"{names[0]} is better than {names[1]} by" if difference.is_significant else f"{both} differ by no"
    return f"{relation[0].upper()}{relation[1:]} more than the noise: {sweep.goal.names[0]} {change_text(difference)}"
