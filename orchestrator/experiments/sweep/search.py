"""The search of a sweep with Optuna, which suggests and prunes trials, and writes the journal.

No point is tried twice. Points that were infeasible or did not start are reported as pruned, so that the sampler avoids
them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from orchestrator.core.errors import UsageError
from orchestrator.core.files import naming
from orchestrator.core.signals import defer_signals
from orchestrator.core.validation import type_adapter
from orchestrator.experiments.sweep.objective import Goal
from orchestrator.experiments.sweep.space import Point, SearchSpace, SweepParameter

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial

_STUDY: Final = "sweep"
_OUTCOME: Final = "outcome"  # trial attribute: the outcome
_IDENTITY: Final = "begun"  # study attribute: the data that identifies the sweep
_CONFIRMED: Final = "confirmed"  # study attribute: the repeated runs
_RANDOM_TRIALS: Final = 4  # random trials before the sampler uses results and before pruning
_MIN_WEIGHED: Final = (
    2 * _RANDOM_TRIALS
)  # minimum of measured trials, below which noise dominates the importance of settings
_MAX_SUGGESTIONS: Final = 20  # repeated suggestions of known points before choosing the first untried point


class TrialOutcome(StrEnum):
    """The outcome of a trial."""

    MEASURED = "measured"
    PRUNED = "stopped early"
    SATURATED = "saturated"  # a rate or limit of the objective was missed
    UNSTEADY = "not steady"  # no steady window, or too few requests to judge it
    LAGGED = "client-lagged"  # the load client was late, regardless of the server
    FAILED = "failed"
    INFEASIBLE = "infeasible"  # by the planner or by sglang; no server was started
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """A trial or a repeated run of a trial, as recorded in the journal."""

    number: int  # from 1, in order of completion
    point: Mapping[str, int]
    outcome: TrialOutcome
    values: tuple[float, ...] = ()  # of the objective; empty unless measured
    reason: str = ""  # the reason if there are no values
    diagnosis: str = ""
    directory: str = ""  # of the result, relative to the directory of the sweep
    answers: str = ""  # verdict and evidence of the smoke test for correct answers
    seconds: float = 0.0
    is_baseline: bool = False  # the original profile

    @property
    def ran(self) -> bool:
        """Whether the trial started a server and ended."""
        return self.outcome not in {TrialOutcome.INFEASIBLE, TrialOutcome.INTERRUPTED}


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A point to try; `trial` is None for a repeated run, which is not an Optuna trial."""

    point: Point
    is_baseline: bool
    trial: "Trial | None"

    def should_prune(self, rung: int, attained_rates: float, *, higher_is_better: bool) -> bool:
        """Return whether to stop the trial because it sustained clearly less than other trials up to this rung.

        `attained_rates` is cumulative, since Optuna's median pruner uses the best value reported by a trial so far.
        """
        if self.trial is None:
            return False
        with defer_signals():
            self.trial.report(attained_rates if higher_is_better else -attained_rates, rung)
        return bool(self.trial.should_prune())


def _open_journal(optuna: Any, journal: Path) -> "JournalFileBackend":  # noqa: ANN401 - a module
    """Open Optuna's journal in a file; an OSError on a write names the file."""

    class NamedJournal(optuna.storages.journal.JournalFileBackend):  # type: ignore[misc]  # imported lazily
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with naming(journal):
                super().append_logs(logs)

    backend: JournalFileBackend = NamedJournal(str(journal))
    return backend


class Search:
    """A resumable Optuna study, with all state in a journal file."""

    def __init__(
        self, journal: Path, space: SearchSpace, goal: Goal, *, sweep_identity: Mapping[str, object], seed: int = 1
    ) -> None:
        """Open or create the journal; `sweep_identity` identifies the sweep.

        Raises UsageError for a journal of another sweep, or of another version of this tool.
        """
        self._optuna, self._space, self._goal, self._seed = load_optuna(), space, goal, seed
        self._study = self._open(journal)
        identity = dict(sweep_identity)
        if (saved := self._study.user_attrs.get(_IDENTITY, identity)) != identity:
            changed = sorted(key for key in identity if saved.get(key) != identity[key])
            hint = "repeat the options of the first run, or use another `--output`"
            message = f"this sweep was started with another {', '.join(changed)}"
            raise UsageError(message, location=str(journal), hint=hint)
        self._require_readable(journal)
        self._study.set_user_attr(_IDENTITY, identity)
        self._distributions = {parameter.key: self._distribution(parameter) for parameter in space.parameters}
        self._end_unfinished()

    def _open(self, journal: Path) -> "Study":
        optuna = self._optuna
        directions = ["maximize" if higher else "minimize" for higher in self._goal.higher_is_better]
        sampler = optuna.samplers.TPESampler(seed=self._seed, n_startup_trials=_RANDOM_TRIALS)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=_RANDOM_TRIALS, n_min_trials=2)
        try:
            study: Study = optuna.create_study(
                study_name=_STUDY,
                storage=optuna.storages.JournalStorage(_open_journal(optuna, journal)),
                sampler=sampler,
                pruner=pruner,
                directions=directions,
                load_if_exists=True,
            )
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise UsageError(
                f"cannot read the journal: {error}", location=str(journal), hint="use another `--output`"
            ) from error
        return study

    def _require_readable(self, journal: Path) -> None:
        try:
            _ = self.trials, self.confirmations
        except ValidationError as error:
            message, hint = "the journal was written by another version of this tool", "use another `--output`"
            raise UsageError(message, location=str(journal), hint=hint) from error

    def _distribution(self, parameter: SweepParameter) -> "BaseDistribution":
        distributions, count = self._optuna.distributions, len(parameter.values)
        distribution: BaseDistribution = (
            distributions.IntDistribution(0, count - 1)
            if parameter.ordered
            else distributions.CategoricalDistribution([*range(count)])
        )
        return distribution

    def _end_unfinished(self) -> None:
        """Finish the trials of a killed sweep: report a saved outcome, else mark the trial as failed."""
        states = self._optuna.trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=[states.RUNNING]):
            if _OUTCOME in trial.user_attrs:
                self._report(trial.number, _outcome(trial))
            else:
                self._study.tell(trial.number, state=states.FAIL)

    @property
    def trials(self) -> tuple[SweepTrial, ...]:
        """All trials with an outcome, in order of completion."""
        ended = [trial for trial in self._study.get_trials(deepcopy=False) if _OUTCOME in trial.user_attrs]
        ended.sort(key=lambda trial: trial.datetime_complete or datetime.max)  # noqa: DTZ901 - Optuna's times have no zone
        return tuple(map(_outcome, ended))

    def ask(self, baseline: Point | None) -> Suggestion | None:
        """Return an untried point, first `baseline` (the original profile); None if all were tried."""
        with defer_signals():  # a signal must not interrupt a write to the journal
            done = [trial.point for trial in self.trials if trial.outcome is not TrialOutcome.INTERRUPTED]
            if baseline is not None and baseline not in done:
                self._study.enqueue_trial(dict(baseline))
            for _ in range(_MAX_SUGGESTIONS):
                trial = self._study.ask(self._distributions)
                if trial.params not in done:
                    return Suggestion(point=dict(trial.params), is_baseline=trial.params == baseline, trial=trial)
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            next_point = next((point for point in self._space.points() if point not in done), None)
            if next_point is None:
                return None
            self._study.enqueue_trial(dict(next_point))
            trial = self._study.ask(self._distributions)
            return Suggestion(point=dict(trial.params), is_baseline=False, trial=trial)

    def record_trial(self, suggestion: Suggestion, ended: SweepTrial) -> None:
        """Record the outcome of a trial."""
        if suggestion.trial is None:
            return
        with defer_signals():
            suggestion.trial.set_user_attr(_OUTCOME, asdict(ended))
            self._report(suggestion.trial.number, ended)

    def _report(self, number: int, ended: SweepTrial) -> None:
        states = self._optuna.trial.TrialState
        if ended.outcome is TrialOutcome.MEASURED and ended.values:
            self._study.tell(number, list(ended.values))
        else:
            unknown = ended.outcome in {TrialOutcome.INTERRUPTED, TrialOutcome.LAGGED}
            self._study.tell(number, state=states.FAIL if unknown else states.PRUNED)

    @property
    def confirmations(self) -> tuple[SweepTrial, ...]:
        """The repeated runs, in order."""
        saved = self._study.user_attrs.get(_CONFIRMED, [])
        repeats: tuple[SweepTrial, ...] = type_adapter(tuple[SweepTrial, ...]).validate_python(saved)
        return repeats

    def repeats_of(self, trial: SweepTrial) -> list[SweepTrial]:
        """Return the repeated runs of a trial, in order."""
        return [confirmation for confirmation in self.confirmations if confirmation.number == trial.number]

    def confirm(self, ended: SweepTrial) -> None:
        """Record a repeated run of a trial."""
        with defer_signals():
            self._study.set_user_attr(
                _CONFIRMED, [asdict(confirmation) for confirmation in (*self.confirmations, ended)]
            )

    def best(self) -> tuple[SweepTrial, ...]:
        """Return the best trials, including ties; with several objectives the Pareto-optimal ones."""
        measured = [trial for trial in self.trials if trial.values]
        if not measured:
            return ()
        if len(self._goal.names) > 1:
            return tuple(sorted(map(_outcome, self._study.best_trials), key=lambda trial: -trial.values[0]))
        best = self._study.best_value
        return tuple(trial for trial in measured if trial.values[0] == best)

    def importances(self) -> dict[str, float]:
        """Return the importance of each parameter for the first objective, from 0 to 1 (PED-ANOVA), if known."""
        if sum(bool(trial.values) for trial in self.trials) < _MIN_WEIGHED:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = (lambda trial: float(trial.values[0])) if len(self._goal.names) > 1 else None
            importance = self._optuna.importance
            try:
                shares: dict[str, float] = importance.get_param_importances(
                    self._study, evaluator=importance.PedAnovaImportanceEvaluator(), target=first
                )
            except (ValueError, RuntimeError):  # fewer than two trials, or all equal
                return {}
        return {key: float(value) for key, value in shares.items()} if len(shares) > 1 else {}


def _outcome(trial: "FrozenTrial") -> SweepTrial:
    outcome: SweepTrial = type_adapter(SweepTrial).validate_python(trial.user_attrs[_OUTCOME])
    return outcome


def load_optuna() -> Any:  # noqa: ANN401 - a module, whose submodules are its attributes
    """Import Optuna with deferred signals, since numpy starts a thread that must not receive any (`core/signals.py`).

    Raises UsageError if Optuna is not installed.
    """
    try:
        with defer_signals():
            import optuna  # noqa: PLC0415 - takes 0.5 s, and only a sweep needs it
    except ImportError as error:
        hint = "`uv tool install '.[sweep]'` in a clone of this tool"
        message = f"`deploy sweep` needs Optuna, which is not installed ({error.name})"
        raise UsageError(message, hint=hint) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
