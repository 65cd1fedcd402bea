"""The confirmation of the best trials of a sweep by repeated runs, since one run shows no noise. Pure."""

from collections import Counter
from statistics import median
from typing import Final

from orchestrator.experiments.sweep.run import Sweep
from orchestrator.experiments.sweep.search import Search, SweepTrial

_MOST: Final = 3  # trials to confirm; with many equal trials, each would lead for a while


def runs_of(search: Search, trial: SweepTrial) -> tuple[float, ...]:
    """Return the value of each run of a trial; for a single objective."""
    again = [each for each in search.confirmations if each.number == trial.number]
    return (trial.values[0], *(each.values[0] for each in again if each.values))


def ranked(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the measured trials, best first, by the median of their runs; for a single objective."""
    sign = -1 if sweep.goal.higher_is_better[0] else 1
    measured = [trial for trial in search.trials if any(trial.values)]
    return tuple(sorted(measured, key=lambda trial: sign * median(runs_of(search, trial))))


def confirmed(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """Return the best trials, including ties, among the confirmed ones; among all if none is confirmed."""
    again = {each.number for each in search.confirmations}
    order = ranked(sweep, search)
    order = tuple(trial for trial in order if trial.number in again) or order
    best = [median(runs_of(search, trial)) for trial in order[:1]]
    return tuple(trial for trial in order if median(runs_of(search, trial)) in best)


def to_confirm(sweep: Sweep, search: Search) -> SweepTrial | None:
    """Return the next trial to confirm: the best, then the second if it is within the runs of the best; else None."""
    if not sweep.repeats or len(sweep.goal.names) > 1:
        return None
    counts = Counter(each.number for each in search.confirmations)
    order = ranked(sweep, search)
    open_to_more = len(counts) < _MOST
    for place, trial in enumerate(order[:2]):
        if counts[trial.number] < sweep.repeats and (open_to_more or trial.number in counts):
            return trial if place == 0 or _alike(sweep, search, order[0], trial) else None
    return None


def _alike(sweep: Sweep, search: Search, best: SweepTrial, other: SweepTrial) -> bool:
    """Return whether the median of `other` is not worse than the worst run of `best`."""
    worst = min if sweep.goal.higher_is_better[0] else max
    theirs, ours = median(runs_of(search, other)), worst(runs_of(search, best))
    return theirs >= ours if worst is min else theirs <= ours


def confirmed_words(sweep: Sweep, search: Search, trial: SweepTrial) -> str:
    """Describe the runs of a trial: number, values and the last failure."""
    runs = runs_of(search, trial)
    failed = [each.why for each in search.confirmations if each.number == trial.number and not each.values]
    told = f"{len(runs)} runs: {', '.join(sweep.goal.text((value,)) for value in runs)}" if len(runs) > 1 else "one run"
    return f"{told}; another run failed: {failed[-1]}" if failed else told
