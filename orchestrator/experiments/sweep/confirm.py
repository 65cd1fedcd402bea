"""The confirmation of the best trials of a sweep by repeated runs, since one run shows no noise. Pure."""

from collections import Counter
from statistics import median
from typing import Final

from orchestrator.experiments.sweep.run import Sweep
from orchestrator.experiments.sweep.search import Search, SweepTrial

_MAX_TRIALS: Final = 3  # trials to confirm; with many equal trials, each would lead for a while


def runs_of(search: Search, trial: SweepTrial) -> tuple[float, ...]:
    """Return the value of each run of a trial; for a single objective."""
    repeats = [each for each in search.confirmations if each.number == trial.number]
    return (trial.values[0], *(each.values[0] for each in repeats if each.values))


def ranked(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the measured trials, best first, by the median of their runs; for a single objective."""
    sign = -1 if sweep.goal.higher_is_better[0] else 1
    measured = [trial for trial in search.trials if any(trial.values)]
    return tuple(sorted(measured, key=lambda trial: sign * median(runs_of(search, trial))))


def confirmed(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the best trials, including ties, among the confirmed ones; among all if none is confirmed."""
    repeated = {each.number for each in search.confirmations}
    order = ranked(sweep, search)
    order = tuple(trial for trial in order if trial.number in repeated) or order
    best = [median(runs_of(search, trial)) for trial in order[:1]]
    return tuple(trial for trial in order if median(runs_of(search, trial)) in best)


def next_to_confirm(sweep: Sweep, search: Search) -> SweepTrial | None:
    """Return the next trial to confirm: the best, then the second if it is within the runs of the best; else None."""
    if not sweep.repeats or len(sweep.goal.names) > 1:
        return None
    counts = Counter(each.number for each in search.confirmations)
    order = ranked(sweep, search)
    for trial in order[:2]:
        if counts[trial.number] < sweep.repeats and (len(counts) < _MAX_TRIALS or trial.number in counts):
            return trial if trial is order[0] or _is_as_good(sweep, search, order[0], trial) else None
    return None


def _is_as_good(sweep: Sweep, search: Search, best: SweepTrial, other: SweepTrial) -> bool:
    """Return whether the median of `other` is not worse than the worst run of `best`."""
    value, runs = median(runs_of(search, other)), runs_of(search, best)
    return value >= min(runs) if sweep.goal.higher_is_better[0] else value <= max(runs)


def describe_runs(sweep: Sweep, search: Search, trial: SweepTrial) -> str:
    """Describe the runs of a trial: number, values and the last failure."""
    runs = runs_of(search, trial)
    failed = [each.why for each in search.confirmations if each.number == trial.number and not each.values]
    text = f"{len(runs)} runs: {', '.join(sweep.goal.text((value,)) for value in runs)}" if len(runs) > 1 else "one run"
    return f"{text}; another run failed: {failed[-1]}" if failed else text
