"""What evaluations gave, beside a baseline or what was published: in words and as data."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import stdev

from orchestrator.evals import tau2
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.run import against_outcome, against_published
from orchestrator.evals.significance import Interval, SignificanceTest, pass_interval, score_interval


@dataclass(frozen=True, kw_only=True)
class SuiteScore:
    """An outcome in its file, with that of its baseline and what that is called; None: the published scores."""

    outcome: EvalResult
    file: Path
    before: EvalResult | None
    against: str | None

    def judged(self) -> tuple[tuple[str, SignificanceTest | None], ...]:
        """What stands beside the score, each with what can be told; None where nothing can."""
        if self.before is None:
            return against_published(self.outcome)
        against = self.against or "baseline"
        return ((against, against_outcome(self.outcome, self.before, where=against)),)

    def lines(self) -> Iterator[str]:
        """For people."""
        outcome = self.outcome
        yield f"{outcome.suite}: {outcome.score:.4f} of {_asked(outcome)}, {outcome.metric}, {outcome.harness}"
        if outcome.suite == tau2.NAME:
            yield "; ".join(f"pass^{k} {_interval(*pass_interval(groups))}" for k, groups in outcome.pass_hat())
        for against, judgment in self.judged():
            told = judgment.sentence if judgment else "nothing can be told, its sample size was not published"
            yield f"against {against}: {told}"

    def to_dict(self) -> dict[str, object]:
        """For programs."""
        outcome, interval = self.outcome, score_interval(self.outcome)
        said = {
            "suite": outcome.suite,
            "score": outcome.score,
            "items": len(outcome.items),
            "questions": len(outcome.answers),
            "effective_items": outcome.effective_items,
            "interval": asdict(interval),
            "seeds": {str(seed): score for seed, score in outcome.by_seed.items()},
            "metric": outcome.metric,
            "harness": outcome.harness,
            "against": [
                {"what": what, **(asdict(told) if told else {}), "sentence": told.sentence if told else None}
                for what, told in self.judged()
            ],
        }
        if outcome.suite == tau2.NAME:
            passed = {str(k): pass_interval(groups) for k, groups in outcome.pass_hat()}
            said["pass_hat"] = {k: {"share": share, **asdict(span)} for k, (share, span) in passed.items()}
        return said


def _asked(outcome: EvalResult) -> str:
    """How many questions, by how many seeds, and how sure their score is."""
    if len(outcome.by_seed) < 2:
        return f"{len(outcome.items)} items"
    what, times = ("tasks", "trials") if outcome.suite == tau2.NAME else ("questions", "seeds")
    by_seed = list(outcome.by_seed.values())
    each = ", ".join(f"{score:.3f}" for score in by_seed)
    shown = score_interval(outcome)
    return (
        f"{len(outcome.answers)} {what} x {len(by_seed)} {times} ({each}; spread {stdev(by_seed):.3f}), "
        f"95 % interval {shown.low:.3f} to {shown.high:.3f}, clustered by {what.removesuffix('s')}: worth "
        f"{outcome.effective_items:.0f} independent answers"
    )


def _interval(share: float, interval: Interval) -> str:
    return f"{share:.3f} ({interval.low:.3f} to {interval.high:.3f})"
