"""`deploy eval`: the forecast, then the score of each suite, with an optional baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench.run import BenchTarget, is_url
from orchestrator.core.console import warn
from orchestrator.core.paths import Home
from orchestrator.engine.options import Meaning
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import BASELINE_DIR, EvalResult
from orchestrator.evals.forecast import EvalForecast, forecast, plan_of_target
from orchestrator.evals.harness import require_questions
from orchestrator.evals.report import SuiteScore
from orchestrator.evals.run import (
    EvalOptions,
    load_baseline,
    require_no_earlier_result,
    require_sampling,
    save_eval_result,
    score_suite,
    served_model,
)
from orchestrator.evals.suites import PUBLISHED, SuiteRun, suite_runs, tau2_note

OpenTarget = Callable[[str], BenchTarget]  # opens a server by its name, or an endpoint by its URL


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
    def runs(self) -> tuple[SuiteRun, ...]:
        """The suites run by lm-evaluation-harness. Raises UsageError for an unknown suite."""
        if self.options.suite == tau2.NAME:
            return ()
        runs = suite_runs(self.options.suite, limit=self.options.limit, seeds=self.seeds)
        if (max_tokens := self.options.max_tokens) is None:
            return runs
        return tuple(replace(run, suite=replace(run.suite, max_tokens=max_tokens)) for run in runs)

    @property
    def is_all_published(self) -> bool:
        """Whether all published suites are requested."""
        return self.options.suite == PUBLISHED

    @property
    def prints_commands(self) -> bool:
        """Whether to print the tau2 commands instead of running a suite."""
        return self.options.suite == tau2.NAME and self.simulations is None

    @property
    def suites(self) -> tuple[str, ...]:
        """The names of all suites with a score."""
        with_tau2 = self.simulations is not None and self.options.suite in {tau2.NAME, PUBLISHED}
        return (*(run.suite.name for run in self.runs), *((tau2.NAME,) if with_tau2 else ()))

    @property
    def saved_baselines(self) -> Mapping[str, EvalResult]:
        """The saved baseline results by suite; empty if the baseline is a server."""
        if self.baseline is None:
            return {}
        results = {suite: load_baseline(self.baseline, suite) for suite in self.suites}
        return {suite: result for suite, result in results.items() if result is not None}


def forecast_eval(request: EvalPlan, home: Home, *, planned: bool) -> EvalForecast:
    """Forecast sensitivity, duration and cost; `planned` requires a plan. Raises UsageError, ProfileError."""
    saved = request.saved_baselines
    skips_tau2 = request.is_all_published or (request.prints_commands and planned)
    return forecast(
        request.runs,
        plan=plan_of_target(request.target, home, planned=planned),
        results=request.options.output,
        prices=request.prices,
        saved_baselines=saved,
        sides=2 if request.baseline is not None and not saved else 1,
        skipped=(tau2_note(request.target),) if skips_tau2 and request.simulations is None else (),
    )


def run_suites(
    request: EvalPlan, home: Home, open_target: OpenTarget, say: Callable[[str], None]
) -> tuple[SuiteScore, ...]:
    """Run each suite on target and baseline, after checking that all of them can run.

    Raises what `score_suite` and `tau2.read_simulations` raise.
    """
    saved, scores = request.saved_baselines, list[SuiteScore]()
    if tau2.NAME in request.suites and request.simulations is not None:
        scores = [_score_tau2(request, request.simulations, saved.get(tau2.NAME))]
    return (*(_run_harness(request, saved, home, open_target, say) if request.runs else ()), *scores)


def _run_harness(
    request: EvalPlan, saved: Mapping[str, EvalResult], home: Home, open_target: OpenTarget, say: Callable[[str], None]
) -> list[SuiteScore]:
    """Run the suites of lm-evaluation-harness."""
    candidate, baseline_server, scores = open_target(request.target), None, []
    if request.baseline is not None and not saved:
        baseline_server = open_target(request.baseline)
    suites = [replace(request.options, suite=run.suite.name, limit=run.limit, seeds=run.seeds) for run in request.runs]
    for options in suites:
        for server in filter(None, (candidate, baseline_server)):
            require_sampling(server, options.resolved_suite)
        require_questions(options.resolved_suite, options.dataset)
        require_no_earlier_result(options, with_baseline=baseline_server is not None)
    for options in suites:
        result, file = score_suite(candidate, options, options.output, home=home, say=say)
        baseline = saved.get(options.suite)
        if baseline_server is not None:
            baseline, _ = score_suite(baseline_server, options, options.output / BASELINE_DIR, home=home, say=say)
        scores.append(SuiteScore(result=result, file=file, baseline=baseline, baseline_name=request.baseline))
    return scores


def _score_tau2(request: EvalPlan, simulations: Path, baseline: EvalResult | None) -> SuiteScore:
    """Read the simulations of the target, and of the baseline unless it is saved, and save the result."""
    reads_both = baseline is None and request.baseline is not None
    if baseline is None and request.baseline is not None:
        baseline = tau2.read_simulations(simulations, request.baseline, "", require_name=True).result
    runs = tau2.read_simulations(simulations, request.target, request.options.command, require_name=reads_both)
    if runs.skipped:
        message = f"skipped {runs.skipped} of {runs.skipped + len(runs.result.items)} tau2 simulations that never ran"
        warn(message, hint="run them with `tau2 run --auto-resume`")
    file = save_eval_result(runs.result, request.options.output)
    return SuiteScore(result=runs.result, file=file, baseline=baseline, baseline_name=request.baseline)


def tau2_commands(request: EvalPlan, home: Home, open_target: OpenTarget) -> str:
    """Return the commands that run tau2 against a server; warn if the server parses no tool calls.

    Raises what `open_target` and `served_model` raise.
    """
    plan = plan_of_target(request.target, home, planned=False)
    if plan is not None and plan.serving.tool_parser is None:
        warn("the server parses no tool calls", hint=f"`--set flags.{Meaning.TOOL_PARSER}=…` at `up`")
    target = open_target(request.target)
    return tau2.tau2_script(
        target.url,
        served_model(target),
        key_env=plan.server.api_key_env if plan else None,
        name="server" if is_url(request.target) else request.target,
        trials=request.seeds or tau2.TRIALS,
    )
