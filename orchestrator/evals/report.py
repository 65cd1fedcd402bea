"""Eval results compared with a baseline or published scores, as text and as JSON data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

from orchestrator.bench.published import published_evals
from orchestrator.core.errors import BenchError
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.quality import compare_with_published_score
from orchestrator.evals.significance import Interval, SignificanceTest, compare_results, score_interval


@dataclass(frozen=True, kw_only=True)
class SuiteScore:
    """An eval result with its file, and its baseline with a name; None compares with the published scores."""

    result: EvalResult
    file: Path
    baseline: EvalResult | None
    baseline_name: str | None

    def tests(self) -> tuple[tuple[str, SignificanceTest | None], ...]:
        """Return (name, test) for each baseline; the test is None if no sample size was published."""
        result = self.result
        if self.baseline is None:
            return tuple(
                (
                    f"{line.model} {score.label} {score.score} published",
                    compare_with_published_score(line, score, result),
                )
                for line in published_evals()
                if line.suite == result.suite and line.is_of(result.model)
                for score in (line.baseline, line.candidate)
            )
        name = self.baseline_name or "baseline"
        return ((name, compare_with_baseline(result, self.baseline, location=name)),)

    def lines(self) -> Iterator[str]:
        """Yield the result as text lines."""
        result = self.result
        yield f"{result.suite}: {result.score:.4f} of {_describe_sample(result)}, {result.metric}, {result.harness}"
        if not (tests := self.tests()):
            yield f"nothing is published for `{result.model}`; `--baseline` compares with a result or a server"
        for name, test in tests:
            yield f"against {name}: {test.sentence if test else 'not comparable: no sample size was published'}"

    def to_output(self) -> "ScoreOutput":
        """Return the result for JSON."""
        result = self.result
        return ScoreOutput(
            suite=result.suite,
            score=result.score,
            items=len(result.items),
            questions=len(result.answers),
            effective_items=result.effective_items,
            interval=score_interval(result),
            seeds={str(seed): score for seed, score in result.by_seed.items()},
            metric=result.metric,
            harness=result.harness,
            against=tuple(
                Judgment(what=name, test=test, sentence=test.sentence if test else None) for name, test in self.tests()
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """The test against the baseline `what`; null if no sample size was published."""

    what: str
    test: SignificanceTest | None
    sentence: str | None


@dataclass(frozen=True, kw_only=True)
class ScoreOutput:
    """The score of a suite, a share of 1 in all and by seed."""

    suite: str
    score: float
    items: int
    questions: int
    effective_items: float
    interval: Interval
    seeds: dict[str, float]
    metric: str
    harness: str
    against: tuple[Judgment, ...]


def compare_with_baseline(result: EvalResult, baseline: EvalResult, *, location: str) -> SignificanceTest:
    """Compare a result with its baseline. Raises BenchError if suite, metric, task or answer length differ."""
    for name, expected, actual in (
        ("suite", result.suite, baseline.suite),
        ("metric", result.metric, baseline.metric),
        ("task", result.task, baseline.task),
        ("maximum tokens", result.max_tokens, baseline.max_tokens),
    ):
        if actual != expected and None not in (actual, expected):
            message = f"cannot compare with the baseline: its {name} is `{actual}`, not `{expected}`"
            raise BenchError(message, location=location)
    return compare_results(baseline, result)


def _describe_sample(result: EvalResult) -> str:
    """Describe the number of questions and seeds, and the confidence interval."""
    scores = list(result.by_seed.values())
    if len(scores) < 2:
        return f"{len(result.items)} items"
    unit, repeats = ("task", "trials") if result.suite == tau2.NAME else ("question", "seeds")
    interval = score_interval(result)
    return (
        f"{len(result.answers)} {unit}s x {len(scores)} {repeats} ({', '.join(f'{score:.3f}' for score in scores)}; "
        f"spread {stdev(scores):.3f}), 95 % interval {interval.low:.3f} to {interval.high:.3f}, "
        f"clustered by {unit}: effective sample size {result.effective_items:.0f}"
    )
