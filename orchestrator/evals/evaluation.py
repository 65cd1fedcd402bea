"""`deploy eval`: the forecast, then the score of each suite, with an optional baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench.run import BenchTarget
from orchestrator.core.paths import Home
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.forecast import EvalForecast, forecast, plan_of_target
from orchestrator.evals.report import SuiteScore
from orchestrator.evals.run import (
    EvalOptions,
    baseline_result,
    evaluate_with_baseline,
    read_tau2,
    require_room,
    require_runnable,
    tau2_commands,
)
from orchestrator.evals.suite_runs import PUBLISHED, SuiteRun, suite_runs, tau2_note

Reach = Callable[[str], BenchTarget]  # opens a server by its name, or an endpoint by its URL


@dataclass(frozen=True, kw_only=True)
class EvalPlan:
    """The request of the user: target, baseline and options; `seeds` is None for the published number."""

    target: str
    baseline: str | None
    options: EvalOptions
    seeds: int | None = None
    simulations: Path | None = None
    prices: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[SuiteRun, ...]:
        """The suites run by lm-evaluation-harness. Raises UsageError for an unknown suite."""
        if self.options.suite == tau2.NAME:
            return ()
        options, own = self.options, self.options.max_tokens
        parts = suite_runs(options.suite, limit=options.limit, seeds=self.seeds)
        return tuple(
            part if own is None else replace(part, suite=replace(part.suite, max_tokens=own)) for part in parts
        )

    @property
    def is_several(self) -> bool:
        """Whether all published suites are requested."""
        return self.options.suite == PUBLISHED

    @property
    def wants_commands(self) -> bool:
        """Whether to print the tau2 commands instead of running a suite."""
        return self.options.suite == tau2.NAME and self.simulations is None

    @property
    def suites(self) -> tuple[str, ...]:
        """The names of all suites with a score."""
        with_tau2 = self.simulations is not None and self.options.suite in {tau2.NAME, PUBLISHED}
        return (*(part.suite.name for part in self.parts), *((tau2.NAME,) if with_tau2 else ()))

    @property
    def before(self) -> Mapping[str, EvalResult]:
        """The saved baseline results by suite; empty if the baseline is a server."""
        if self.baseline is None:
            return {}
        earlier = {suite: baseline_result(self.baseline, suite) for suite in self.suites}
        return {suite: result for suite, result in earlier.items() if result is not None}


def expect(request: EvalPlan, home: Home, *, planned: bool) -> EvalForecast:
    """Forecast sensitivity, duration and cost; `planned` requires a plan. Raises UsageError, ProfileError."""
    before, to_tell = request.before, request.is_several or (request.wants_commands and planned)
    return forecast(
        request.parts,
        plan=plan_of_target(request.target, home, planned=planned),
        results=request.options.output,
        prices=request.prices,
        before=before,
        sides=2 if request.baseline is not None and not before else 1,
        left_out=(tau2_note(request.target),) if to_tell and request.simulations is None else (),
    )


def score(request: EvalPlan, home: Home, reach: Reach, say: Callable[[str], None]) -> tuple[SuiteScore, ...]:
    """Run each suite on target and baseline, after checking that all of them can run.

    Raises what `evaluate_with_baseline` and `read_tau2` raise.
    """
    before, of_tau2 = request.before, list[SuiteScore]()
    if tau2.NAME in request.suites and request.simulations is not None:
        of_tau2 = [_tau2(request, request.simulations, before.get(tau2.NAME))]
    return (*(_asked(request, before, home, reach, say) if request.parts else ()), *of_tau2)


def _asked(
    request: EvalPlan, before: Mapping[str, EvalResult], home: Home, reach: Reach, say: Callable[[str], None]
) -> list[SuiteScore]:
    """Run the suites of lm-evaluation-harness."""
    candidate, beside, scored = reach(request.target), None, []
    if request.baseline is not None and not before:
        beside = reach(request.baseline)
    given = request.options
    asked = [replace(given, suite=each.suite.name, limit=each.limit, seeds=each.seeds) for each in request.parts]
    for options in asked:
        require_runnable(options.asked, candidate, beside, data=options.dataset)
        require_room(options, beside=beside is not None)
    for options in asked:
        earlier = before.get(options.suite)
        result, other, file = evaluate_with_baseline(candidate, beside, earlier, options, home=home, say=say)
        scored.append(SuiteScore(result=result, file=file, before=other, against=request.baseline))
    return scored


def _tau2(request: EvalPlan, simulations: Path, before: EvalResult | None) -> SuiteScore:
    compared = before is None and request.baseline is not None
    if compared and request.baseline is not None:
        before = tau2.read_simulations(simulations, request.baseline, "", compared=True).result
    result, file = read_tau2(simulations, request.target, request.options, compared=compared)
    return SuiteScore(result=result, file=file, before=before, against=request.baseline)


def commands_of_tau2(request: EvalPlan, home: Home, reach: Reach) -> str:
    """Return the commands that run tau2 against a server. Raises what `reach` and `tau2_commands` raise."""
    plan = plan_of_target(request.target, home, planned=False)
    return tau2_commands(reach(request.target), request.target, plan, request.seeds)
