"""Pairs of scores, measured and published, with their significance. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.bench.published import EvalScore, Published, PublishedEval
from orchestrator.core.errors import UsageError
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.significance import SignificanceTest, compare_independent, compare_results


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
        judgment = compare_independent(baseline=line.baseline.score, candidate=line.candidate.score, items=sizes)
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


def compare_with_published_score(line: PublishedEval, score: EvalScore, result: EvalResult) -> SignificanceTest | None:
    """Compare a measured score with a published one; None if no sample size was published.

    The effective sample size of published seeds is assumed to match that of the measured ones.
    """
    if line.samples is None:
        return None
    effective_share = (line.items or line.samples) / line.samples
    if effective_share < 1 and len(result.by_seed) > 1:
        effective_share = result.effective_items / len(result.items)
    sizes = (line.samples * effective_share, result.effective_items)
    return compare_independent(baseline=score.score, candidate=result.score, items=sizes)


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
        judgment = compare_with_published_score(line, score, candidate)
        row = _measured(candidate, judgment, label=f"{score.label}, published", baseline=score.score)
        ablation = published.reproduce.baseline_of(candidate.suite) if score is line.baseline else None
        again = f"`deploy reproduce {published.name} --ablation {ablation.name}`" if ablation else ""
        yield replace(row, caveat=f"{row.caveat}; {score.label} not measured: {again}") if again else row


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
