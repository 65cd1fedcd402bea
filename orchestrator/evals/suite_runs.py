"""The suites of an evaluation, as requested or published, and the expected throughput."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.bench.published import Published, PublishedEval
from orchestrator.evals import tau2
from orchestrator.evals.run import published_evals
from orchestrator.evals.suites import SUITES, Suite, find_suite
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load

PUBLISHED: Final = "published"  # selects all published suites
HARNESS: Final = 60.0  # seconds of overhead: 30 to start, 30 to create its venv once


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """One suite with its number of questions (None: all) and of seeds."""

    suite: Suite
    limit: int | None
    seeds: int

    @property
    def answers(self) -> int:
        """The number of answers."""
        return min(self.limit or self.suite.size, self.suite.size) * self.seeds

    def seconds(self, pace: "EvalPace") -> float | None:
        """Return the duration if every answer has the maximum length; None if the throughput is unknown."""
        if pace.tok_s is None:
            return None
        return HARNESS * self.seeds + self.answers * self.suite.max_tokens / pace.tok_s


@dataclass(frozen=True, kw_only=True)
class EvalPace:
    """The output tok/s of a server under load, with its source; None if neither measured nor published."""

    tok_s: float | None
    source: str


def suite_run(suite: str, published: Sequence[PublishedEval]) -> SuiteRun:
    """Return a suite as published, or all of its questions once. Raises UsageError for an unknown suite."""
    found = find_suite(suite)
    line = next((line for line in published if line.suite == suite), None)
    items = line.items if line and line.items else found.size
    seeds = line.samples // items if line and line.samples else 1
    return SuiteRun(suite=found, limit=items if items < found.size else None, seeds=seeds)


def suite_runs(suite: str, *, limit: int | None, seeds: int | None) -> tuple[SuiteRun, ...]:
    """Return the runs of a suite or of all published ones; limit and seeds default to the published ones.

    Raises UsageError for an unknown suite, and for several seeds of a greedy suite.
    """
    if suite == PUBLISHED:
        lines = published_evals()
        runs = [suite_run(line.suite, lines) for line in lines if line.suite in SUITES]
        return tuple(
            replace(run, limit=limit or run.limit, seeds=(seeds if run.suite.samples else None) or run.seeds)
            for run in runs
        )
    found, count = find_suite(suite), seeds or 1
    found.seeds(count)
    return (SuiteRun(suite=found, limit=limit, seeds=count),)


def published_pace(plan: Plan, published: Published) -> EvalPace:
    """Return the lowest published throughput of the model, host and layout of a plan."""
    models = {load(run.profile).plan.model.name for run in published.reproduce.runs}
    system, layout = f"{plan.gpu_count}×{plan.hardware.name}".lower(), plan.layout.label
    rows = [row for row in published.layouts if (row.system.lower(), row.layout) == (system, layout)]
    if plan.model.name not in models or plan.replicas > 1 or not rows:
        return EvalPace(tok_s=None, source=f"nothing published for {plan.model.name}, {layout} on {system}")
    lowest = min(row.output_tok_s for row in rows)
    slower = "" if plan.serving.drafts else " with MTP, which this plan does not use; expect longer"
    return EvalPace(tok_s=lowest, source=f"published for {layout} on {rows[0].system} ({published.source}){slower}")


def tau2_note(server: str) -> str:
    """Return the note about tau2, which `deploy` does not run."""
    tasks = sum(tau2.DOMAINS.values())
    return (
        f"this tool does not run `tau2`, and its minutes and price are unknown: its {tasks} tasks need another "
        f"model as their user; `deploy eval {server} --suite tau2` prints its commands, --simulations reads its results"
    )
