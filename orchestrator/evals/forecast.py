"""The forecast of an evaluation: sensitivity, duration and cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.bench import metrics
from orchestrator.bench.cost import CostEstimate
from orchestrator.bench.published import Published, entries_of_kind, load_all_published, split_currency
from orchestrator.bench.result_files import results_under
from orchestrator.bench.run import is_url
from orchestrator.core.console import format_duration, table
from orchestrator.core.errors import DeployError
from orchestrator.core.paths import Home
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.run import describe_sensitivity, expected_score
from orchestrator.evals.suite_runs import HARNESS, EvalPace, SuiteRun, published_pace
from orchestrator.plan.plan import GREEDY_SPECULATION, Plan
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import latest_run, read_plan


@dataclass(frozen=True, kw_only=True)
class EvalForecast:
    """The forecast of each suite; `skipped` lists skipped suites with reasons."""

    runs: tuple[SuiteRun, ...]
    expected_scores: Mapping[str, float | None]  # by suite
    sides: int  # 2 with a baseline server, else 1
    pace: EvalPace
    cost: CostEstimate
    skipped: tuple[str, ...]

    def seconds(self, run: SuiteRun) -> float | None:
        """Return the estimated seconds of a suite on all sides, or None if unknown."""
        seconds = run.seconds(self.pace)
        return seconds * self.sides if seconds is not None else None

    @property
    def has_duration(self) -> bool:
        """Whether the duration is known."""
        return self.pace.tok_s is not None

    def sensitivities(self) -> Iterator[str]:
        """Yield the sensitivity of each suite as text."""
        for run in self.runs:
            expected, full = self.expected_scores[run.suite.name], self.seconds(replace(run, limit=None))
            text = describe_sensitivity(run.suite, limit=run.limit, expected=expected, seeds=run.seeds)
            yield f"{text}, in about {format_duration(full)}" if full and full != self.seconds(run) else text

    def to_table(self) -> str:
        """Return the suites as a table."""
        rows = []
        for run in self.runs:
            seconds = self.seconds(run)
            cells = [format_duration(seconds), self.cost.format_cost(seconds)] if seconds is not None else ["-", "-"]
            questions = f"{run.answers // run.seeds:,}{f' x {run.seeds} seeds' if run.seeds > 1 else ''}"
            rows.append((run.suite.name, questions, f"{run.suite.max_tokens:,}", *cells))
        known = [seconds for seconds in map(self.seconds, self.runs) if seconds is not None]
        if len(known) > 1:
            rows.append(("total", "", "", format_duration(sum(known)), self.cost.format_cost(sum(known))))
        return table(("suite", "questions", "maximum tokens", "about", f"about {self.cost.currency}"), rows)

    def terms(self) -> Iterator[str]:
        """Yield the assumptions of the forecast."""
        if self.runs and self.pace.tok_s is None:
            yield f"duration unknown: {self.pace.source}"
        elif self.runs:
            twice = ", twice" if self.sides == 2 else ""
            formula = f"answers x maximum tokens / {self.pace.tok_s:,.0f} tok/s + {HARNESS:.0f} s a seed{twice}"
            yield f"{formula}: most answers are shorter; tok/s {self.pace.source}"
            yield self.cost.terms
        yield from self.skipped

    def to_output(self) -> "ForecastOutput":
        """Return the forecast for JSON."""
        suites = []
        for run, sensitivity in zip(self.runs, self.sensitivities(), strict=True):
            seconds = self.seconds(run)
            suite = SuiteForecast(
                suite=run.suite.name,
                questions=run.answers // run.seeds,
                seeds=run.seeds,
                tells=sensitivity,
                about_s=seconds,
                cost=self.cost.cost_of(seconds) if seconds is not None else None,
            )
            suites.append(suite)
        return ForecastOutput(
            parts=tuple(suites),
            currency=self.cost.currency,
            pace=self.pace,
            sides=self.sides,
            terms=tuple(self.terms()),
        )


@dataclass(frozen=True, kw_only=True)
class SuiteForecast:
    """A suite: the effect that its sample can show, its estimated seconds and its cost; null if unknown."""

    suite: str
    questions: int
    seeds: int
    tells: str
    about_s: float | None
    cost: float | None


@dataclass(frozen=True, kw_only=True)
class ForecastOutput:
    """With `--dry-run`: the suites, costs in `currency`, for one or two `sides`, and the terms of the estimate."""

    parts: tuple[SuiteForecast, ...]
    currency: str
    pace: EvalPace
    sides: int
    terms: tuple[str, ...]


def forecast(
    runs: Sequence[SuiteRun],
    *,
    plan: Plan | None,
    results: Path,
    prices: Sequence[str] = (),
    saved_baselines: Mapping[str, EvalResult] | None = None,
    sides: int = 1,
    skipped: tuple[str, ...] = (),
) -> EvalForecast:
    """Forecast an evaluation of a server with this plan; `results` may hold its measurements.

    `before` holds saved baseline results by suite; `prices` are values of `--price`.
    """
    currency, plain = split_currency(prices)
    node = plan.hardware if plan else None
    bill = CostEstimate.for_gpus(node.name if node else "", node.gpus if node else 0, plain, currency)
    names = [part.suite.name for part in runs]
    return EvalForecast(
        runs=tuple(runs),
        expected_scores={name: expected_score(name, (saved_baselines or {}).get(name)) for name in names},
        sides=sides,
        pace=find_pace(plan, results),
        cost=bill,
        skipped=(*_obstacles(runs, plan), *skipped),
    )


def _obstacles(parts: Sequence[SuiteRun], plan: Plan | None) -> Iterator[str]:
    """Yield the reasons why suites cannot run."""
    greedy = next((warning for warning in plan.warnings if warning.id == GREEDY_SPECULATION), None) if plan else None
    for part in parts:
        if greedy is not None and part.suite.samples:
            yield f"`{part.suite.name}` cannot run: {greedy.summary}; {greedy.hint}"


def plan_of_target(name: str, home: Home, *, planned: bool) -> Plan | None:
    """Return the plan of a server, or of the profile with its name; None for a URL.

    Raises ProfileError if `planned` is set and there is neither.
    """
    if is_url(name):
        return None
    if (known := read_plan(latest_run(home, name))) is not None:
        return known
    try:
        return load(name).plan
    except DeployError:
        if planned:
            raise
        return None


def find_pace(plan: Plan | None, results: Path) -> EvalPace:
    """Return the measured throughput of a plan, else the published one of its layout."""
    if plan is None:
        return EvalPace(tok_s=None, source="the plan of the server is unknown")
    measured = [each for each in results_under(results) if each.run.provenance.plan_digest == plan.digest]
    rates = [(metrics.OUTPUT.value_of(point) or 0.0, each) for each in measured for point in each.points]
    if rates and (best := max(rates, key=lambda pair: pair[0]))[0] > 0:
        return EvalPace(tok_s=best[0], source=f"measured: best of `{best[1].run.workload_name}` below `{results}`")
    known = (published_pace(plan, table) for table in entries_of_kind(load_all_published(), Published))
    nothing = EvalPace(tok_s=None, source=f"no result of this plan below `{results}`; measure one with `deploy bench`")
    return next((pace for pace in known if pace.tok_s is not None), nothing)
