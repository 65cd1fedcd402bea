"""The supported suites: task of lm-evaluation-harness, sampling parameters, published runs and expected throughput."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.bench.published import Published, PublishedEval, published_evals
from orchestrator.core.errors import UsageError
from orchestrator.core.safe_paths import FileName
from orchestrator.evals import tau2
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load

PUBLISHED: Final = "published"  # selects all published suites
HARNESS: Final = 60.0  # seconds of overhead: 30 to start, 30 to create its venv once


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite: a task, its API and sampling, and its dataset."""

    name: str
    task: str  # name in lm-eval 0.4.13
    task_file: str  # below lm_eval/tasks/
    chat: bool  # chat completions with the server's template, else plain completions
    few_shot: int
    generation: Mapping[str, str]
    loader: str  # loader of the datasets library for local files
    questions: str  # the split with the questions
    size: int  # number of questions in the split
    examples: str | None  # the split with the few-shot examples: `<split>.jsonl` next to the questions
    file: str  # file name of the questions in a local dataset
    max_tokens: int  # maximum length of an answer, including reasoning
    gated: str | None = None  # dataset on the hub with terms to accept

    @property
    def hub_page(self) -> str:
        """The page on which the terms of the questions are accepted."""
        return f"https://huggingface.co/datasets/{self.gated}"

    @property
    def samples(self) -> bool:
        """Whether answers are sampled, so that seeds matter."""
        return float(self.generation["temperature"]) > 0

    def seeds(self, count: int) -> tuple[int | None, ...]:
        """Return the seeds of `count` runs; (None,) for a greedy suite. Raises UsageError for several greedy runs."""
        if self.samples:
            return tuple(range(FIRST_SEED, FIRST_SEED + count))
        if count > 1:
            raise UsageError(f"`{self.name}` is greedy; all seeds give the same answers", hint="omit `--seeds`")
        return (None,)


FIRST_SEED: Final = 1234  # first sampling seed, lm-eval's default; the order of choices has a separate, fixed seed

SUITES: Final = {
    suite.name: suite
    for suite in (
        # 5-shot and greedy as published.
        Suite(
            name="gsm8k",
            task="gsm8k",
            task_file="gsm8k/gsm8k.yaml",
            chat=False,
            few_shot=5,
            generation={"temperature": "0.0", "do_sample": "False"},
            max_tokens=512,
            file="test.jsonl",
            loader="json",
            questions="test",
            size=1319,  # openai/grade-school-math
            examples="train",
        ),
        # Temperature 1.0 as published; a reasoning model needs many tokens. The post names no variant. Of lm-eval's
        # five variants only the generative ones allow sampling, and only this one is zero-shot.
        Suite(
            name="gpqa-diamond",
            task="gpqa_diamond_cot_zeroshot",
            task_file="gpqa/cot_zeroshot/gpqa_diamond_cot_zeroshot.yaml",
            chat=True,
            few_shot=0,
            generation={"temperature": "1.0", "do_sample": "True"},
            max_tokens=32768,
            file="gpqa_diamond.csv",
            gated="Idavidrein/gpqa",
            loader="csv",
            questions="train",
            size=198,  # Rein and others 2023, table 1
            examples=None,
        ),
    )
}


def find_suite(name: str) -> Suite:
    """Return a suite by name. Raises UsageError with the known names."""
    if name in SUITES:
        return SUITES[name]
    names = ", ".join(f"`{suite}`" for suite in (*SUITES, "tau2"))
    raise UsageError(f"no suite `{name}` found", hint=f"use one of {names}, or `published` for all published suites")


def local_files(suite: Suite, questions: Path) -> dict[str, str]:
    """Return the local dataset files by split; `questions` is a file or directory. Raises UsageError."""
    if questions.is_dir():
        questions = questions / FileName(suite.file)
    files = {suite.questions: questions.absolute()}
    if suite.examples is not None:
        files[suite.examples] = questions.absolute().parent / FileName(f"{suite.examples}{questions.suffix}")
    for split, file in files.items():
        if not file.is_file():
            content = f"the {suite.few_shot} examples" if split == suite.examples else "the questions"
            hint = "copy it there, or omit `--dataset` to download it"
            raise UsageError(f"no file with {content} of `{suite.name}` found", location=str(file), hint=hint)
    return {split: str(file) for split, file in files.items()}


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
    """Return a suite as published, else all its questions once. Raises UsageError for an unknown suite."""
    definition = find_suite(suite)
    line = next((line for line in published if line.suite == suite), None)
    questions = line.questions if line and line.questions else definition.size
    seeds = line.samples // questions if line and line.samples else 1
    return SuiteRun(suite=definition, limit=questions if questions < definition.size else None, seeds=seeds)


def suite_runs(suite: str, *, limit: int | None, seeds: int | None, max_tokens: int | None) -> tuple[SuiteRun, ...]:
    """Return the runs of a suite, or of all published suites; limit and seeds default to the published values.

    Raises UsageError for an unknown suite, or for several seeds of a greedy suite.
    """
    if suite == PUBLISHED:
        lines = published_evals()
        published = [suite_run(line.suite, lines) for line in lines if line.suite in SUITES]
        runs = [
            replace(run, limit=limit or run.limit, seeds=(seeds if run.suite.samples else None) or run.seeds)
            for run in published
        ]
    else:
        runs = [SuiteRun(suite=find_suite(suite), limit=limit, seeds=seeds or 1)]
        runs[0].suite.seeds(runs[0].seeds)
    return tuple(replace(run, suite=replace(run.suite, max_tokens=max_tokens or run.suite.max_tokens)) for run in runs)


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
