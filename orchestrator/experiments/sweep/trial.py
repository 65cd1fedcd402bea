"""The trials of a sweep: each starts, measures and stops a server."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from orchestrator.bench.result import BenchResult, EndReason
from orchestrator.bench.run import BenchOptions, bench
from orchestrator.core.console import Progress, muted, note, warn
from orchestrator.core.errors import (
    BenchError,
    DeployError,
    Interrupted,
    KernelsError,
    NameTakenError,
    NotReadyError,
    ProfileError,
    SmokeError,
    StartError,
)
from orchestrator.core.files import remove_tree
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.secrets import redact
from orchestrator.core.signals import allow_signals, defer_signals
from orchestrator.core.subprocesses import quote
from orchestrator.experiments.sweep.confirm import next_to_confirm
from orchestrator.experiments.sweep.run import Sweep, budget_exhausted, spent, too_many_infeasible
from orchestrator.experiments.sweep.search import Search, Suggestion, SweepTrial, TrialOutcome
from orchestrator.servers.down import down
from orchestrator.servers.servers import open_servers
from orchestrator.servers.start.request import UpRequest, UpResult
from orchestrator.servers.start.up import up
from orchestrator.servers.start.verify import smoke_server
from orchestrator.servers.targets import server_target

# Errors caused by a configuration. Any other error comes from the host and ends the sweep.
_CONFIGURATION_ERRORS: Final = (NotReadyError, SmokeError, KernelsError, StartError, BenchError, ProfileError)
_ANSWERS: Final = "correct answers"  # the smoke test check with known answers
_MAX_DIAGNOSIS: Final = 4000  # characters


class NoObjectiveError(DeployError):
    """No trial of this sweep can provide the objective, even if resumed."""


@dataclass
class _EarlyStopping:
    """A callback that ends a trial's measurement after a rate if the knee is found or the trial is worse."""

    sweep: Sweep
    suggestion: Suggestion
    pruned: bool = False

    def __call__(self, result: BenchResult) -> EndReason | None:
        goal, workload = self.sweep.goal, self.sweep.workload
        if goal.knee_found(result):
            return EndReason.COMPLETE
        point = result.points[-1]
        last = workload.ramp.max_rps if workload.ramp else (workload.request_rates or (0.0,))[-1]
        if len(goal.names) > 1 or point.offered_rps is None or point.offered_rps >= last:
            return None  # Optuna cannot prune trials with several objectives
        attained_rates = goal.attained_rates(result)
        self.pruned = self.suggestion.should_prune(
            len(result.points), attained_rates, higher_is_better=goal.higher_is_better[0]
        )
        return EndReason.INTERRUPTED if self.pruned else None


def stop_sweep_server(sweep: Sweep) -> None:
    """Stop the sweep's server immediately if it exists, with deferred signals."""
    with defer_signals(), open_servers(sweep.home, sweep.request.host) as servers:
        if servers.find(sweep.server) or sweep.plan.runtime in servers.unreachable:
            down(servers, sweep.server, drain=0)


def run_trials(sweep: Sweep, search: Search, ended: Callable[[], object]) -> str:
    """Run trials until the budget is exhausted or all points were tried, and return the reason.

    Calls `ended` after each trial. Raises Interrupted after Ctrl-C, and any DeployError not caused by a configuration;
    in both cases, stops the server first.
    """
    resume_hint = "repeat the command with `--resume`"
    try:
        with open_servers(sweep.home, sweep.request.host) as servers:
            running = servers.find(sweep.server)
        if running:
            note("stopping the server of a killed sweep")
            stop_sweep_server(sweep)
        reason = _search(sweep, search, ended)
        short = _confirm(sweep, search, ended)
    except (KeyboardInterrupt, Interrupted) as error:  # displayed after the server has stopped
        stopped = f"`{sweep.server}` is stopped, nothing is left running; {resume_hint}"
        raise Interrupted("interrupted; results so far are saved", hint=stopped) from error
    except NoObjectiveError:
        raise
    except DeployError as error:
        error.hint = "; ".join(filter(None, [error.hint, f"then {resume_hint}"]))
        raise
    finally:
        stop_sweep_server(sweep)  # an interrupt may arrive between a trial and its cleanup
    return "; ".join(filter(None, [reason, short]))


def _search(sweep: Sweep, search: Search, ended: Callable[[], object]) -> str:
    while not (reason := spent(search.trials, sweep, confirmed=_confirmed_seconds(search))):
        suggestion = search.ask(sweep.baseline_point)
        if suggestion is None or too_many_infeasible(search.trials):
            return (
                "every point of the space was tried" if suggestion is None else "no further point that fits was found"
            )
        _try(sweep, search, suggestion)
        ended()
    return reason


def _confirm(sweep: Sweep, search: Search, ended: Callable[[], object]) -> str:
    """Repeat runs of the best trials within the budget; return the reason for missing runs, or ""."""
    while (trial := next_to_confirm(sweep, search)) is not None:
        if short := budget_exhausted(search.trials, sweep, confirmed=_confirmed_seconds(search)):
            return f"trial {trial.number} has fewer repeats than requested: {short}"
        count = 2 + len(search.repeats_of(trial))
        line = _TrialLine(f"trial {trial.number}, run {count} of {sweep.repeats + 1}")
        suggestion = Suggestion(point=trial.point, is_baseline=trial.is_baseline, trial=None)
        pending = replace(trial, outcome=TrialOutcome.INTERRUPTED, values=(), reason="", diagnosis="")
        repeated = _run(sweep, search, suggestion, pending, line, folder=f"{trial.number:03d}-{count}")
        search.confirm(repeated)
        line.end(_describe(sweep, repeated))
        ended()
    return ""


def _confirmed_seconds(search: Search) -> float:
    return sum(confirmation.seconds for confirmation in search.confirmations)


def _try(sweep: Sweep, search: Search, suggestion: Suggestion) -> None:
    number = 1 + sum(trial.outcome is not TrialOutcome.INTERRUPTED for trial in search.trials)
    settings = ", ".join(f"{key} {value}" for key, value in sweep.space.display(suggestion.point).items())
    line = _TrialLine(f"trial {number}: {settings}{' (the profile itself)' if suggestion.is_baseline else ''}")
    pending = SweepTrial(
        number=number, point=suggestion.point, outcome=TrialOutcome.INTERRUPTED, is_baseline=suggestion.is_baseline
    )
    if reason := sweep.infeasible_reason(dict(suggestion.point)):
        ended = replace(pending, outcome=TrialOutcome.INFEASIBLE, reason=reason)
    else:
        ended = _run(sweep, search, suggestion, pending, line, folder=f"{number:03d}")
    search.record_trial(suggestion, ended)
    line.end(_describe(sweep, ended))


def _describe(sweep: Sweep, trial: SweepTrial) -> str:
    duration = f" after {trial.seconds:.0f} s" if trial.seconds else ""
    if trial.values:
        return f"{sweep.goal.text(trial.values)} ({', '.join(sweep.goal.names)}){duration}"
    return f"{trial.outcome}{duration}: {trial.reason}"


def _run(
    sweep: Sweep, search: Search, suggestion: Suggestion, pending: SweepTrial, line: "_TrialLine", *, folder: str
) -> SweepTrial:
    """Start, verify, measure and stop a configuration; `_CONFIGURATION_ERRORS` count as outcomes."""
    begin, directory = time.monotonic(), RelativePath(f"trials/{folder}")
    remove_tree(sweep.request.output / directory, within=sweep.request.output)  # left by a killed trial
    early_stopping = _EarlyStopping(sweep, suggestion)
    trial = replace(pending, directory=str(directory))
    started: UpResult | None = None
    try:
        with _stopped_at_end(sweep):
            with line.step("starting"):
                started = up(_up_request(sweep, suggestion), sweep.home, on_verified=lambda: None)
            trial = replace(trial, answers=_answers_verdict(started))
            with line.step("measuring"):
                result = _measure(sweep, suggestion, early_stopping, sweep.request.output / directory)
            trial = _evaluate(sweep, result, early_stopping, trial)
            if trial.values and _leads(sweep, search, trial):
                with line.step("smoke test"), open_servers(sweep.home, sweep.request.host) as servers:
                    smoke_server(servers, sweep.server, strict_kernels=False).require()
    except NameTakenError:
        line.leave()
        raise
    except _CONFIGURATION_ERRORS as error:
        is_infeasible = isinstance(error, ProfileError) and started is None
        outcome = TrialOutcome.INFEASIBLE if is_infeasible else TrialOutcome.FAILED
        diagnosis = redact(error.details)[-_MAX_DIAGNOSIS:]
        trial = replace(trial, values=(), outcome=outcome, reason=_reason(error), diagnosis=diagnosis)
    except BaseException:
        line.leave()
        cut = replace(trial, values=(), outcome=TrialOutcome.INTERRUPTED, seconds=_seconds_since(begin))
        with suppress(Exception):
            search.record_trial(suggestion, cut)
        raise
    return replace(trial, seconds=_seconds_since(begin))


def _seconds_since(begin: float) -> float:
    return round(time.monotonic() - begin, 3)


class _TrialLine:
    """The output line of one trial: its step on a terminal, then its outcome, and each new warning once."""

    _warned: ClassVar[set[str]] = set()

    def __init__(self, trial: str) -> None:
        self._trial, self._progress = trial, Progress()
        self._warnings: list[tuple[str, str]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self._progress.live:
            self._progress.update(f"{self._trial}: {name}")
        with muted() as warnings:
            try:
                yield
            finally:
                self._warnings += warnings

    def end(self, outcome: str) -> None:
        for text, hint in self._warnings:
            if text not in self._warned:
                self._progress.clear()
                warn(text, hint=hint)
                self._warned.add(text)
        self._progress.update(f"{self._trial}: {outcome}")
        self._progress.done()

    def leave(self) -> None:
        """Keep the last step visible when the sweep ends with an error."""
        self._progress.done()


@contextmanager
def _stopped_at_end(sweep: Sweep) -> Iterator[None]:
    """Stop the server at the end of the block, with deferred signals."""
    with defer_signals():
        try:
            with allow_signals():
                yield
        finally:
            with muted():
                stop_sweep_server(sweep)


def _up_request(sweep: Sweep, suggestion: Suggestion) -> UpRequest:
    request = sweep.request
    return UpRequest(
        profile=request.profile,
        name=sweep.server,
        overrides=(*request.overrides, *sweep.space.overrides(suggestion.point), "server.gateway=null"),
        host=request.host,
        image=None,
        replace=False,
        keep_failed=False,
        stage=True,
        allow_untuned=request.allow_untuned,
        strict_kernels=False,
        timeout=None,
    )


def _measure(sweep: Sweep, suggestion: Suggestion, early_stopping: _EarlyStopping, folder: Path) -> BenchResult:
    options = BenchOptions(
        workload=sweep.workload_ref,
        changes=sweep.changes,
        usd_per_gpu_hour=sweep.request.usd_per_gpu_hour,
        label=", ".join(sweep.space.display(suggestion.point).values()),
        directory=folder,
        command=quote(["deploy", "bench", sweep.server, "--workload", sweep.workload_ref]),
        stop_when=early_stopping,
    )
    with open_servers(sweep.home, sweep.request.host) as servers:
        result, _ = bench(server_target(servers, sweep.server), options, lambda _text, _transient: None)
    if result.end_reason is EndReason.INTERRUPTED and not early_stopping.pruned:
        raise Interrupted("interrupted")
    return result


def _evaluate(sweep: Sweep, result: BenchResult, early_stopping: _EarlyStopping, trial: SweepTrial) -> SweepTrial:
    """Add the values or the outcome of a measurement to a trial.

    Raises BenchError if the server exited, NoObjectiveError if no trial can provide the objective.
    """
    if early_stopping.pruned:
        point = result.points[-1]
        share = f"{sweep.goal.attained(point):.0%} of the load"
        reason = f"at {point.label} requests/s it sustained {share}, less than the others"
        return replace(trial, outcome=TrialOutcome.PRUNED, reason=reason)
    if result.end_reason is EndReason.ENDPOINT_DIED:
        example = next((failure.example for failure in result.points[-1].failures), "during the warm-up")
        hint = f"`deploy diagnose {sweep.server}` names the cause"
        raise BenchError(f"the server exited under load: {example}", hint=hint)
    goal, values = sweep.goal, sweep.goal.values(result)
    if cause := goal.client_lag(result):  # first, because a late client's values do not reflect the server
        return replace(
            trial, outcome=TrialOutcome.LAGGED, reason=f"{goal.text(values)}, but {cause}" if values else cause
        )
    if cause := goal.overload(result):
        missed = any(point.sustained is False for point in result.points)
        return replace(trial, outcome=TrialOutcome.SATURATED if missed else TrialOutcome.UNSTEADY, reason=cause)
    if values is None:
        raise NoObjectiveError(goal.missing(result), hint="another `--objective`, with another `--output`")
    return replace(trial, outcome=TrialOutcome.MEASURED, values=values)


def _leads(sweep: Sweep, search: Search, candidate: SweepTrial) -> bool:
    """Return whether no earlier trial is better; such a trial gets a second smoke test after its load."""
    signs = [1 if higher else -1 for higher in sweep.goal.higher_is_better]
    values = [sign * value for sign, value in zip(signs, candidate.values, strict=True)]
    for trial in search.best():
        other_values = [sign * value for sign, value in zip(signs, trial.values, strict=True)]
        if other_values != values and all(a >= b for a, b in zip(other_values, values, strict=True)):
            return False
    return True


def _answers_verdict(started: UpResult) -> str:
    """Return verdict and evidence of the smoke test for correct answers; "" without that check."""
    checks = started.smoke.checks if started.smoke else ()
    return next((f"{check.verdict}: {check.evidence}" for check in checks if check.name == _ANSWERS), "")


def _reason(error: DeployError) -> str:
    return redact("; ".join(problem.message for problem in error.problems_or_self()))
