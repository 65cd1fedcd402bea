"""Scores, measured and published, compared with their significance: as text, as JSON data, and as rows of a report."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev

from orchestrator.bench.published import EvalScore, Published, PublishedEval, published_evals
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.evals import tau2
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.significance import (
    Interval,
    SignificanceTest,
    compare_independent,
    compare_results,
    score_interval,
)


@dataclass(frozen=True, kw_only=True)
class SuiteScore:
    """An eval result with its file, and its named baseline; None compares with the published scores."""

    result: EvalResult
    file: Path
    baseline: EvalResult | None
    baseline_name: str | None

    def tests(self) -> tuple[tuple[str, SignificanceTest | None], ...]:
        """Return (name, test) for each baseline; the test is None if no sample size was published."""
        result = self.result
        if self.baseline is None:
            return tuple(
                (f"{line.model} {score.label} {score.score} published", _compare_with_published(line, score, result))
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
            answers=len(result.answered),
            questions=len(result.answers),
            effective_answers=result.effective_answers,
            interval=score_interval(result),
            seeds={str(seed): score for seed, score in result.by_seed.items()},
            metric=result.metric,
            harness=result.harness,
            against=tuple(
                Judgment(baseline=name, test=test, sentence=test.sentence if test else None)
                for name, test in self.tests()
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """The test against a baseline; null if no sample size was published."""

    baseline: str
    test: SignificanceTest | None
    sentence: str | None


@dataclass(frozen=True, kw_only=True)
class ScoreOutput:
    """The score of a suite, a share of 1 in all and by seed."""

    suite: str
    score: float
    answers: int
    questions: int
    effective_answers: float
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
            raise BenchError(message, location=location, hint="evaluate both with the same suite and settings")
    return compare_results(baseline, result)


def _describe_sample(result: EvalResult) -> str:
    """Describe the number of questions and seeds, and the confidence interval."""
    scores = list(result.by_seed.values())
    if len(scores) < 2:
        return f"{len(result.answered)} questions"
    unit, repeats = ("task", "trials") if result.suite == tau2.NAME else ("question", "seeds")
    interval = score_interval(result)
    return (
        f"{len(result.answers)} {unit}s x {len(scores)} {repeats} ({', '.join(f'{score:.3f}' for score in scores)}; "
        f"spread {stdev(scores):.3f}), 95 % interval {interval.low:.3f} to {interval.high:.3f}, "
        f"clustered by {unit}: effective sample size {result.effective_answers:.0f}"
    )


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """Two scores of one suite; `judgment` is None if a sample size is unknown."""

    title: str
    measured: bool
    baseline_label: str
    candidate_label: str
    baseline: float
    candidate: float
    judgment: SignificanceTest | None
    caveat: str


def published_eval(line: PublishedEval) -> EvalRow:
    """Compare two published scores; `judgment` needs a published sample size."""
    judgment = None
    if line.samples is not None:
        sizes = (line.samples, line.samples)
        judgment = compare_independent(baseline=line.baseline.score, candidate=line.candidate.score, sizes=sizes)
    return EvalRow(
        title=line.title,
        measured=False,
        baseline_label=line.baseline.display_label,
        candidate_label=line.candidate.display_label,
        baseline=line.baseline.score,
        candidate=line.candidate.score,
        judgment=judgment,
        caveat=line.caveat,
    )


def _compare_with_published(line: PublishedEval, score: EvalScore, result: EvalResult) -> SignificanceTest | None:
    """Compare a measured score with a published one; None if no sample size was published.

    Published seeds are assumed to have the same effective sample size as the measured seeds.
    """
    if line.samples is None:
        return None
    effective_share = (line.questions or line.samples) / line.samples
    if effective_share < 1 and len(result.by_seed) > 1:
        effective_share = result.effective_answers / len(result.answered)
    sizes = (line.samples * effective_share, result.effective_answers)
    return compare_independent(baseline=score.score, candidate=result.score, sizes=sizes)


def measured_evals(
    published: Published | None, baseline: EvalResult | None, candidate: EvalResult
) -> Iterator[EvalRow]:
    """Compare a result with a measured baseline, else with each published score. Raises UsageError without either.

    The row of a published baseline names the command that measures it.
    """
    if baseline is not None:
        yield _measured(candidate, compare_results(baseline, candidate), label=baseline.model, baseline=baseline.score)
        return
    line = next((line for line in (published.evals if published else ()) if line.suite == candidate.suite), None)
    if published is None or line is None:
        raise UsageError(f"no baseline for `{candidate.suite}`", hint="set one with `--baseline FILE`")
    for score in (line.baseline, line.candidate):
        if not line.is_of(candidate.model):
            row = _measured(candidate, None, label=f"{line.model} {score.label}, published", baseline=score.score)
            yield replace(row, caveat=f"another model than {line.model}: not comparable; {candidate.harness}")
            continue
        judgment = _compare_with_published(line, score, candidate)
        row = _measured(candidate, judgment, label=f"{score.label}, published", baseline=score.score)
        ablation = published.reproduce.baseline_of(candidate.suite) if score is line.baseline else None
        command = f"`deploy reproduce {published.name} --ablation {ablation.name}`" if ablation else ""
        yield replace(row, caveat=f"{row.caveat}; {score.label} not measured: {command}") if command else row


def _measured(candidate: EvalResult, judgment: SignificanceTest | None, *, label: str, baseline: float) -> EvalRow:
    method = judgment.method if judgment else "no sample size was published"
    return EvalRow(
        title=f"{candidate.suite}, {candidate.metric}",
        measured=True,
        baseline_label=label,
        candidate_label=candidate.model,
        baseline=baseline,
        candidate=candidate.score,
        judgment=judgment,
        caveat=f"{method}, {candidate.harness}",
    )
