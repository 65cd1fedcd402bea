"""Scores of evaluations, measured and published, two by two. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.bench.published import EvalScore, PublishedEval
from orchestrator.core.errors import UsageError
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.significance import SignificanceTest, judge_independent, judge_outcomes


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """Two scores of one suite; `judgment` is None where no sample size is known."""

    title: str
    measured: bool
    baseline_label: str
    candidate_label: str
    baseline: float
    candidate: float
    judgment: SignificanceTest | None
    caveat: str


def published_eval(line: PublishedEval) -> EvalRow:
    """Two published scores, judged where the number of samples was published too."""
    judgment = None
    if line.samples is not None:
        sizes = (line.samples, line.samples)
        judgment = judge_independent(baseline=line.baseline.score, candidate=line.candidate.score, items=sizes)
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


def beside_published(line: PublishedEval, score: EvalScore, outcome: EvalResult) -> SignificanceTest | None:
    """What a measured score says beside a published one; None where no sample size was published.

    Several published seeds are taken to be worth as much as the measured ones are, and one each where there are none.
    """
    if line.samples is None:
        return None
    worth = (line.items or line.samples) / line.samples
    if worth < 1 and len(outcome.by_seed) > 1:
        worth = outcome.effective_items / len(outcome.items)
    sizes = (line.samples * worth, outcome.effective_items)
    return judge_independent(baseline=score.score, candidate=outcome.score, items=sizes)


def measured_evals(
    published: tuple[PublishedEval, ...], baseline: EvalResult | None, candidate: EvalResult
) -> Iterator[EvalRow]:
    """A measured score beside a measured baseline, else beside each published one. Raises UsageError without either."""
    if baseline is not None:
        yield _measured(candidate, judge_outcomes(baseline, candidate), label=baseline.model, before=baseline.score)
        return
    line = next((line for line in published if line.suite == candidate.suite), None)
    if line is None:
        raise UsageError(f"no baseline for `{candidate.suite}`", hint="name one with `--baseline FILE`")
    for score in (line.baseline, line.candidate):
        judgment = beside_published(line, score, candidate)
        yield _measured(candidate, judgment, label=f"{score.label}, published", before=score.score)


def _measured(candidate: EvalResult, judgment: SignificanceTest | None, *, label: str, before: float) -> EvalRow:
    told = judgment.method if judgment else "no sample size was published"
    return EvalRow(
        title=f"{candidate.suite}, {candidate.metric}",
        measured=True,
        baseline_label=label,
        candidate_label=candidate.model,
        baseline=before,
        candidate=candidate.score,
        judgment=judgment,
        caveat=f"{told}, {candidate.harness}",
    )
