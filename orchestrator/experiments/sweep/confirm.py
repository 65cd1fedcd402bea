"""Which trial of a sweep wins, once the best were measured again: one run says nothing of noise. Nothing is started."""

from collections import Counter
from statistics import median
from typing import Final

from orchestrator.experiments.sweep.run import Sweep
from orchestrator.experiments.sweep.search import Search, SweepTrial

_MOST: Final = 3  # trials that are measured again: where all are alike, each would lead for a while


def runs_of(search: Search, trial: SweepTrial) -> tuple[float, ...]:
    """What each run of a trial came to, of one objective."""
    again = [each for each in search.confirmations if each.number == trial.number]
    return (trial.values[0], *(each.values[0] for each in again if each.values))


def ranked(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """What was measured, of one objective, the best first: by the median of its runs."""
    sign = -1 if sweep.goal.higher_is_better[0] else 1
    measured = [trial for trial in search.trials if any(trial.values)]
    return tuple(sorted(measured, key=lambda trial: sign * median(runs_of(search, trial))))


def confirmed(sweep: Sweep, search: Search) -> tuple[SweepTrial, ...]:
    """The best of those that were measured again, or of all where none was; of equal ones all of them."""
    again = {each.number for each in search.confirmations}
    order = ranked(sweep, search)
    order = tuple(trial for trial in order if trial.number in again) or order
    best = [median(runs_of(search, trial)) for trial in order[:1]]
    return tuple(trial for trial in order if median(runs_of(search, trial)) in best)


def to_confirm(sweep: Sweep, search: Search) -> SweepTrial | None:
    """Whom to measure again: the best; then the next, where the best's own runs do not tell the two apart."""
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
    """Whether the other one is no worse than the worst run of the best."""
    worst = min if sweep.goal.higher_is_better[0] else max
    theirs, ours = median(runs_of(search, other)), worst(runs_of(search, best))
    return theirs >= ours if worst is min else theirs <= ours


def confirmed_words(sweep: Sweep, search: Search, trial: SweepTrial) -> str:
    """How often it was measured, and to what each run came; for people."""
    runs = runs_of(search, trial)
    failed = [each.why for each in search.confirmations if each.number == trial.number and not each.values]
    told = f"{len(runs)} runs: {', '.join(sweep.goal.text((value,)) for value in runs)}" if len(runs) > 1 else "one run"
    return f"{told}; once more it failed: {failed[-1]}" if failed else told
