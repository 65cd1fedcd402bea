"""Eval results compared with a baseline or published scores, as text and as JSON data."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import stdev

from orchestrator.evals import tau2
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.run import compare_with_baseline, compare_with_published
from orchestrator.evals.significance import Interval, SignificanceTest, pass_interval, score_interval


@dataclass(frozen=True, kw_only=True)
class SuiteScore:
    """An eval result with its file, and its baseline with a name; None compares with the published scores."""

    result: EvalResult
    file: Path
    before: EvalResult | None
    against: str | None

    def judged(self) -> tuple[tuple[str, SignificanceTest | None], ...]:
        """Return (name, test) for each baseline; the test is None if no sample size was published."""
        if self.before is None:
            return compare_with_published(self.result)
        against = self.against or "baseline"
        return ((against, compare_with_baseline(self.result, self.before, location=against)),)

    def lines(self) -> Iterator[str]:
        """Yield the result as text lines."""
        result = self.result
        yield f"{result.suite}: {result.score:.4f} of {_asked(result)}, {result.metric}, {result.harness}"
        if result.suite == tau2.NAME:
            yield "; ".join(f"pass^{k} {_interval(*pass_interval(groups))}" for k, groups in result.pass_hat())
        for against, judgment in self.judged():
            told = judgment.sentence if judgment else "not comparable: no sample size was published"
            yield f"against {against}: {told}"

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON data."""
        result, interval = self.result, score_interval(self.result)
        said = {
            "suite": result.suite,
            "score": result.score,
            "items": len(result.items),
            "questions": len(result.answers),
            "effective_items": result.effective_items,
            "interval": asdict(interval),
            "seeds": {str(seed): score for seed, score in result.by_seed.items()},
            "metric": result.metric,
            "harness": result.harness,
            "against": [
                {"what": what, **(asdict(told) if told else {}), "sentence": told.sentence if told else None}
                for what, told in self.judged()
            ],
        }
        if result.suite == tau2.NAME:
            passed = {str(k): pass_interval(groups) for k, groups in result.pass_hat()}
            said["pass_hat"] = {k: {"share": share, **asdict(span)} for k, (share, span) in passed.items()}
        return said


def _asked(result: EvalResult) -> str:
    """Describe the number of questions and seeds, and the confidence interval."""
    if len(result.by_seed) < 2:
        return f"{len(result.items)} items"
    what, times = ("tasks", "trials") if result.suite == tau2.NAME else ("questions", "seeds")
    by_seed = list(result.by_seed.values())
    each = ", ".join(f"{score:.3f}" for score in by_seed)
    shown = score_interval(result)
    return (
        f"{len(result.answers)} {what} x {len(by_seed)} {times} ({each}; spread {stdev(by_seed):.3f}), "
        f"95 % interval {shown.low:.3f} to {shown.high:.3f}, clustered by {what.removesuffix('s')}: "
        f"effective sample size {result.effective_items:.0f}"
    )


def _interval(share: float, interval: Interval) -> str:
    return f"{share:.3f} ({interval.low:.3f} to {interval.high:.3f})"
