"""The forecast of an evaluation: sensitivity, duration and cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench import metrics
from orchestrator.bench.cost import CostEstimate
from orchestrator.bench.published import Published, all_published, published_evals
from orchestrator.bench.result_files import results_under
from orchestrator.core.console import format_duration, table
from orchestrator.core.paths import Home
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.run import EvalOptions, plan_of_target
from orchestrator.evals.significance import minimum_detectable_difference
from orchestrator.evals.suites import HARNESS, EvalPace, Suite, SuiteRun, published_pace, tau2_note
from orchestrator.plan.plan import GREEDY_SPECULATION, Plan


@dataclass(frozen=True, kw_only=True)
class SuiteForecast:
    """A suite: the effect that its sample can show, its estimated seconds and its cost; null if unknown."""

    suite: str
    questions: int
    seeds: int
    max_tokens: int
    detects: str
    estimated_s: float | None
    cost: float | None


@dataclass(frozen=True, kw_only=True)
class EvalForecast:
    """With `--dry-run`: the suites, costs in USD, for one or two `servers`, and the terms of the estimate."""

    suites: tuple[SuiteForecast, ...]
    pace: EvalPace
    servers: int  # 2 with a baseline server
    terms: tuple[str, ...]

    def to_table(self) -> str:
        """Return the suites as a table."""
        rows = [
            (
                suite.suite,
                f"{suite.questions:,}{f' x {suite.seeds} seeds' if suite.seeds > 1 else ''}",
                f"{suite.max_tokens:,}",
                *_cells(suite.estimated_s, suite.cost),
            )
            for suite in self.suites
        ]
        timed = [suite for suite in self.suites if suite.estimated_s is not None]
        if len(timed) > 1:
            costs = [item.cost for item in timed if item.cost is not None]
            seconds = sum(item.estimated_s or 0 for item in timed)
            rows.append(("total", "", "", *_cells(seconds, sum(costs) if costs else None)))
        return table(("suite", "questions", "maximum tokens", "estimate", "estimated USD"), rows)


def _cells(seconds: float | None, cost: float | None) -> tuple[str, str]:
    return "-" if seconds is None else format_duration(seconds), "-" if cost is None else f"{cost:.2f}"


def forecast_eval(request: EvalOptions, home: Home, *, planned: bool) -> EvalForecast:
    """Forecast sensitivity, duration and cost; `planned` requires a plan. Raises UsageError, ProfileError."""
    plan, saved = plan_of_target(request.target, home, planned=planned), request.saved_baselines
    sides = 2 if request.baseline is not None and not saved else 1
    node, pace = plan.hardware if plan else None, find_pace(plan, request.output)
    bill = CostEstimate.for_gpus(node.name if node else "", node.gpus if node else 0, request.prices)
    suites = []
    for run in request.runs:
        seconds, full = (item and item * sides for item in (run.seconds(pace), replace(run, limit=None).seconds(pace)))
        expected = expected_score(run.suite.name, saved.get(run.suite.name))
        sensitivity = describe_sensitivity(run.suite, limit=run.limit, expected=expected, seeds=run.seeds)
        suites.append(
            SuiteForecast(
                suite=run.suite.name,
                questions=run.answers // run.seeds,
                seeds=run.seeds,
                max_tokens=run.suite.max_tokens,
                detects=f"{sensitivity}, in about {format_duration(full)}" if full and full != seconds else sensitivity,
                estimated_s=seconds,
                cost=bill.cost_of(seconds) if seconds is not None else None,
            )
        )
    terms = [*(_terms(pace, bill, sides) if suites else ()), *_obstacles(request.runs, plan)]
    if request.simulations is None and (request.is_all_published or (request.prints_commands and planned)):
        terms.append(tau2_note(request.target))
    return EvalForecast(suites=tuple(suites), pace=pace, servers=sides, terms=tuple(terms))


def describe_sensitivity(suite: Suite, *, limit: int | None, expected: float | None, seeds: int = 1) -> str:
    """Describe the smallest score difference that a number of questions can detect (80 % power).

    `expected` is the expected score; None assumes 0.5, the worst case. A paired test detects the same or smaller
    differences. Since the agreement between seeds is unknown, the bounds assume full and no agreement.
    """
    questions, score = min(limit or suite.size, suite.size), 0.5 if expected is None else expected
    low, high = (f"{minimum_detectable_difference(score, questions * answers):.3f}" for answers in (seeds, 1))
    sample = f"{questions:,} questions of `{suite.name}`{f' x {seeds} seeds' if seeds > 1 else ''}"
    difference = f"{low} to {high}" if seeds > 1 else low
    text = f"{sample} show a difference of {difference} or more near {score:.3g} (80 % power)"
    if questions == suite.size:
        return text
    return f"{text}; all {suite.size:,} show {minimum_detectable_difference(score, suite.size):.3f}"


def expected_score(suite: str, baseline: EvalResult | None) -> float | None:
    """Return the baseline's score, else the published mean; None if both are unknown."""
    if baseline is not None:
        return baseline.score
    line = next((line for line in published_evals() if line.suite == suite), None)
    return (line.baseline.score + line.candidate.score) / 2 if line else None


def _terms(pace: EvalPace, bill: CostEstimate, sides: int) -> Iterator[str]:
    if pace.tok_s is None:
        yield f"duration unknown: {pace.source}"
        return
    formula = f"answers x maximum tokens / {pace.tok_s:,.0f} tok/s + {HARNESS:.0f} s a seed{', twice' * (sides == 2)}"
    yield f"{formula}: most answers are shorter; tok/s {pace.source}"
    yield bill.terms


def _obstacles(suite_runs: Sequence[SuiteRun], plan: Plan | None) -> Iterator[str]:
    greedy = next((warning for warning in plan.warnings if warning.id == GREEDY_SPECULATION), None) if plan else None
    for suite_run in suite_runs:
        if greedy is not None and suite_run.suite.samples:
            yield f"`{suite_run.suite.name}` cannot run: {greedy.summary}; {greedy.hint}"


def find_pace(plan: Plan | None, results: Path) -> EvalPace:
    """Return the measured throughput of a plan, else the published throughput of its layout."""
    if plan is None:
        return EvalPace(tok_s=None, source="the plan of the server is unknown")
    measured = [result for result in results_under(results) if result.run.provenance.plan_digest == plan.digest]
    rates = [(metrics.OUTPUT.value_of(point) or 0.0, item) for item in measured for point in item.points]
    if rates and (best := max(rates, key=lambda pair: pair[0]))[0] > 0:
        return EvalPace(tok_s=best[0], source=f"measured: best of `{best[1].run.workload_name}` below `{results}`")
    paces = (published_pace(plan, table) for table in all_published(Published))
    nothing = EvalPace(tok_s=None, source=f"no result of this plan below `{results}`; `deploy bench NAME` measures one")
    return next((pace for pace in paces if pace.tok_s is not None), nothing)
