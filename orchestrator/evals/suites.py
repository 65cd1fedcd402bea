"""The suites we run, as data: which task of lm-evaluation-harness, over which API, with which sampling."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite. `files` maps the task's splits to the file names of a local copy, the questions first."""

    name: str
    task: str  # in lm-eval 0.4.13
    task_file: str  # below lm_eval/tasks/
    metric: str
    filter: str
    chat: bool  # chat completions with the server's own template, else plain completions
    few_shot: int
    generation: Mapping[str, str]
    loader: str  # of the datasets library, for local files
    questions: str  # the split that is asked
    size: int  # questions in that split
    examples: str | None  # the split that few-shot examples come from: `<split>.jsonl` beside the questions


SUITES: Final = {
    suite.name: suite
    for suite in (
        # 5-shot and greedy as published; flexible-extract takes the last number of the answer.
        Suite(
            name="gsm8k",
            task="gsm8k",
            task_file="gsm8k/gsm8k.yaml",
            metric="exact_match",
            filter="flexible-extract",
            chat=False,
            few_shot=5,
            generation={"temperature": "0.0", "do_sample": "False", "max_gen_toks": "512"},
            loader="json",
            questions="test",
            size=1319,  # openai/grade-school-math
            examples="train",
        ),
        # Temperature 1.0 as published; a reasoning model needs room to think.
        Suite(
            name="gpqa-diamond",
            task="gpqa_diamond_cot_zeroshot",
            task_file="gpqa/cot_zeroshot/gpqa_diamond_cot_zeroshot.yaml",
            metric="exact_match",
            filter="flexible-extract",
            chat=True,
            few_shot=0,
            generation={"temperature": "1.0", "do_sample": "True", "max_gen_toks": "32768"},
            loader="csv",
            questions="train",
            size=198,  # Rein and others 2023, table 1
            examples=None,
        ),
    )
}


def find_suite(name: str) -> Suite:
    """The suite of that name. Raises UsageError with those that exist."""
    if name in SUITES:
        return SUITES[name]
    raise UsageError(f"there is no suite `{name}`", hint=f"one of {', '.join(f'`{known}`' for known in SUITES)}")


def local_files(suite: Suite, questions: Path) -> dict[str, str]:
    """The files of a local copy by split. Raises UsageError where one is missing."""
    files = {suite.questions: questions.absolute()}
    if suite.examples is not None:
        files[suite.examples] = questions.absolute().with_name(f"{suite.examples}{questions.suffix}")
    for split, file in files.items():
        if not file.is_file():
            what = f"the {suite.few_shot} examples" if split == suite.examples else "the questions"
            raise UsageError(f"there is no file with {what} of `{suite.name}`", where=str(file))
    return {split: str(file) for split, file in files.items()}
