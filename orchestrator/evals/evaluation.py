"""`deploy eval` as a whole: what is expected, then one suite after the other, beside a baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench.run import BenchTarget
from orchestrator.core.paths import Home
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.forecast import EvalForecast, forecast, plan_behind
from orchestrator.evals.report import SuiteScore
from orchestrator.evals.run import (
    EvalOptions,
    earlier_outcome,
    evaluate_beside,
    read_tau2,
    require_askable,
    require_room,
    tau2_commands,
)
from orchestrator.evals.suite_runs import PUBLISHED, SuiteRun, parts_of, tau2_told

Reach = Callable[[str], BenchTarget]  # opens a server by its name, or an endpoint by its URL


@dataclass(frozen=True, kw_only=True)
class EvalPlan:
    """What the user asked for: who is asked, beside whom, and how. `seeds` None: as was published."""

    target: str
    baseline: str | None
    options: EvalOptions
    seeds: int | None = None
    simulations: Path | None = None
    prices: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[SuiteRun, ...]:
        """What is asked by lm-evaluation-harness. Raises UsageError for a suite that there is not."""
        if self.options.suite == tau2.NAME:
            return ()
        options, own = self.options, self.options.max_tokens
        parts = parts_of(options.suite, limit=options.limit, seeds=self.seeds)
        return tuple(
            part if own is None else replace(part, suite=replace(part.suite, most_tokens=own)) for part in parts
        )

    @property
    def is_several(self) -> bool:
        """Whether it is all that was published."""
        return self.options.suite == PUBLISHED

    @property
    def wants_commands(self) -> bool:
        """Whether nothing is asked here, and the commands that do it are wanted."""
        return self.options.suite == tau2.NAME and self.simulations is None

    @property
    def suites(self) -> tuple[str, ...]:
        """Every suite that gets a score."""
        with_tau2 = self.simulations is not None and self.options.suite in {tau2.NAME, PUBLISHED}
        return (*(part.suite.name for part in self.parts), *((tau2.NAME,) if with_tau2 else ()))

    @property
    def before(self) -> Mapping[str, EvalResult]:
        """The baselines that were asked already, by suite; empty where the baseline is a server."""
        if self.baseline is None:
            return {}
        earlier = {suite: earlier_outcome(self.baseline, suite) for suite in self.suites}
        return {suite: outcome for suite, outcome in earlier.items() if outcome is not None}


def expect(request: EvalPlan, home: Home, *, planned: bool) -> EvalForecast:
    """What will be told, taken and paid; `planned` insists on a plan of that name. Raises UsageError, ProfileError."""
    before, to_tell = request.before, request.is_several or (request.wants_commands and planned)
    return forecast(
        request.parts,
        plan=plan_behind(request.target, home, planned=planned),
        results=request.options.output,
        prices=request.prices,
        before=before,
        sides=2 if request.baseline is not None and not before else 1,
        left_out=(tau2_told(request.target),) if to_tell and request.simulations is None else (),
    )


def score(request: EvalPlan, home: Home, reach: Reach, say: Callable[[str], None]) -> tuple[SuiteScore, ...]:
    """Ask every suite of both sides; nobody is asked anything where one of them cannot be asked all.

    Raises what `evaluate_beside` and `read_tau2` raise.
    """
    before, of_tau2 = request.before, list[SuiteScore]()
    if tau2.NAME in request.suites and request.simulations is not None:
        of_tau2 = [_tau2(request, request.simulations, before.get(tau2.NAME))]
    return (*(_asked(request, before, home, reach, say) if request.parts else ()), *of_tau2)


def _asked(
    request: EvalPlan, before: Mapping[str, EvalResult], home: Home, reach: Reach, say: Callable[[str], None]
) -> list[SuiteScore]:
    """What lm-evaluation-harness asks."""
    candidate, beside, scored = reach(request.target), None, []
    if request.baseline is not None and not before:
        beside = reach(request.baseline)
    given = request.options
    asked = [replace(given, suite=each.suite.name, limit=each.limit, seeds=each.seeds) for each in request.parts]
    for options in asked:
        require_askable(options.asked, candidate, beside, data=options.dataset)
        require_room(options, beside=beside is not None)
    for options in asked:
        earlier = before.get(options.suite)
        outcome, other, file = evaluate_beside(candidate, beside, earlier, options, home=home, say=say)
        scored.append(SuiteScore(outcome=outcome, file=file, before=other, against=request.baseline))
    return scored


def _tau2(request: EvalPlan, simulations: Path, before: EvalResult | None) -> SuiteScore:
    compared = before is None and request.baseline is not None
    if compared and request.baseline is not None:
        before = tau2.read_simulations(simulations, request.baseline, "", compared=True).outcome
    outcome, file = read_tau2(simulations, request.target, request.options, compared=compared)
    return SuiteScore(outcome=outcome, file=file, before=before, against=request.baseline)


def commands_of_tau2(request: EvalPlan, home: Home, reach: Reach) -> str:
    """The commands that ask a running server tau2's tasks. Raises what `reach` and `tau2_commands` raise."""
    plan = plan_behind(request.target, home, planned=False)
    return tau2_commands(reach(request.target), request.target, plan, request.seeds)
