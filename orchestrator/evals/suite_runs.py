"""What an evaluation is made of: suites, as was asked or published, and how fast a server may answer them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.bench.published import Published, PublishedEval
from orchestrator.evals import tau2
from orchestrator.evals.run import published_evals
from orchestrator.evals.suites import SUITES, Suite, find_suite
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load

PUBLISHED: Final = "published"  # the suite of suites
HARNESS: Final = 60.0  # seconds: 30 to start, and as many to make its environment, once


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """One suite of an evaluation: how many questions (None: all of them), and by how many seeds."""

    suite: Suite
    limit: int | None
    seeds: int

    @property
    def answers(self) -> int:
        """How many are given."""
        return min(self.limit or self.suite.size, self.suite.size) * self.seeds

    def seconds(self, pace: "EvalPace") -> float | None:
        """How long it takes where every answer is as long as it may be; None where no pace is known."""
        if pace.tok_s is None:
            return None
        return HARNESS * self.seeds + self.answers * self.suite.most_tokens / pace.tok_s


@dataclass(frozen=True, kw_only=True)
class EvalPace:
    """Output tokens a second of the whole server under load; None where neither measured nor published."""

    tok_s: float | None
    source: str


def part_of(suite: str, published: Sequence[PublishedEval]) -> SuiteRun:
    """A suite as it was published, or all of its questions once. Raises UsageError for one that there is not."""
    chosen = find_suite(suite)
    line = next((line for line in published if line.suite == suite), None)
    items = line.items if line and line.items else chosen.size
    seeds = line.samples // items if line and line.samples else 1
    return SuiteRun(suite=chosen, limit=items if items < chosen.size else None, seeds=seeds)


def parts_of(suite: str, *, limit: int | None, seeds: int | None) -> tuple[SuiteRun, ...]:
    """What a suite asks, or the published ones; as was published where neither limit nor seeds are given.

    Raises UsageError for a suite that there is not, and for several seeds of a greedy one by itself.
    """
    if suite == PUBLISHED:
        lines = published_evals()
        parts = [part_of(line.suite, lines) for line in lines if line.suite in SUITES]
        drawn = [replace(part, seeds=seeds or part.seeds) if part.suite.samples else part for part in parts]
        return tuple(replace(part, limit=limit or part.limit) for part in drawn)
    chosen, count = find_suite(suite), seeds or 1
    chosen.seeds(count)
    return (SuiteRun(suite=chosen, limit=limit, seeds=count),)


def published_pace(plan: Plan, published: Published) -> EvalPace:
    """The lowest published throughput of a plan's model, machine and layout."""
    models = {load(run.profile).plan.model.name for run in published.reproduce.runs}
    system, layout = f"{len(plan.gpus)}×{plan.hardware.name}".lower(), plan.layout.shown
    rows = [row for row in published.layouts if (row.system.lower(), row.layout) == (system, layout)]
    if plan.model.name not in models or plan.replicas > 1 or not rows:
        return EvalPace(tok_s=None, source=f"nothing was published of {plan.model.name}, {layout} on {system}")
    lowest = min(row.output_tok_s for row in rows)
    slower = "" if plan.serving.drafts else ", with MTP, which this plan leaves out: it takes longer"
    return EvalPace(tok_s=lowest, source=f"published for {layout} on {rows[0].system} ({published.source}){slower}")


def tau2_told(server: str) -> str:
    """What is known of tau2 before it is run."""
    tasks = sum(tau2.DOMAINS.values())
    return (
        f"`tau2` is not asked by this tool, and its minutes and price are not known: its {tasks} tasks need another "
        f"model as their user; `deploy eval {server} --suite tau2` prints its commands, --simulations reads its results"
    )
