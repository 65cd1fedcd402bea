"""Scores of evaluations, measured and published, two by two. Pure."""

from dataclasses import dataclass

from orchestrator.core.errors import UsageError
from orchestrator.report.published import PublishedEval
from orchestrator.results import Judgement, Outcome, judge_independent, judge_outcomes


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """Two scores of one suite; `judgement` is None where no sample size is known."""

    title: str
    measured: bool
    baseline_label: str
    candidate_label: str
    baseline: float
    candidate: float
    judgement: Judgement | None
    caveat: str


def published_eval(line: PublishedEval) -> EvalRow:
    """Two published scores, judged where the number of samples was published too."""
    judgement = None
    if line.samples is not None:
        sizes = (line.samples, line.samples)
        judgement = judge_independent(baseline=line.baseline.score, candidate=line.candidate.score, items=sizes)
    return EvalRow(
        title=line.title,
        measured=False,
        baseline_label=line.baseline.shown,
        candidate_label=line.candidate.shown,
        baseline=line.baseline.score,
        candidate=line.candidate.score,
        judgement=judgement,
        caveat=line.caveat,
    )


def measured_eval(published: tuple[PublishedEval, ...], baseline: Outcome | None, candidate: Outcome) -> EvalRow:
    """A measured score beside a measured baseline, else the published one. Raises UsageError where there is neither."""
    if baseline is not None:
        judgement, label = judge_outcomes(baseline, candidate), baseline.model
    else:
        line = next((line for line in published if line.suite == candidate.suite and line.samples), None)
        if line is None or line.samples is None:
            raise UsageError(f"no baseline for `{candidate.suite}`", hint="name one with `--baseline FILE`")
        label = f"{line.baseline.label}, published"
        sizes = (line.samples, len(candidate.items))
        judgement = judge_independent(baseline=line.baseline.score, candidate=candidate.score, items=sizes)
    return EvalRow(
        title=f"{candidate.suite}, {candidate.metric}",
        measured=True,
        baseline_label=label,
        candidate_label=candidate.model,
        baseline=judgement.baseline,
        candidate=candidate.score,
        judgement=judgement,
        caveat=f"{judgement.method}, {candidate.harness}",
    )
