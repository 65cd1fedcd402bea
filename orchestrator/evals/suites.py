"""The suites we run, as data: which task of lm-evaluation-harness, over which API, with which sampling."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import UsageError
from orchestrator.core.safe_paths import FileName


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite: a task, how it is asked, and where its questions are."""

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
    file: str  # the questions in a folder of local copies
    most_tokens: int  # of an answer, thinking included
    gated: str | None = None  # the data set on the hub whose terms have to be accepted

    @property
    def samples(self) -> bool:
        """Whether its answers are drawn, so that another seed is another answer."""
        return float(self.generation["temperature"]) > 0

    def seeds(self, count: int) -> tuple[int | None, ...]:
        """The seeds of so many askings; None for one that is greedy. Raises UsageError for several of that."""
        if self.samples:
            return tuple(range(FIRST_SEED, FIRST_SEED + count))
        if count > 1:
            raise UsageError(f"`{self.name}` is greedy: every seed gives the same answers", hint="leave out --seeds")
        return (None,)


FIRST_SEED: Final = 1234  # of requests, lm-eval's own default; the order of the choices has another, which stays

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
            generation={"temperature": "0.0", "do_sample": "False"},
            most_tokens=512,
            file="test.jsonl",
            loader="json",
            questions="test",
            size=1319,  # openai/grade-school-math
            examples="train",
        ),
        # Temperature 1.0 as published; a reasoning model needs room to think. Of lm-eval's five variants only the
        # generative ones can be sampled at all, and only this one is asked without examples. The post names none.
        Suite(
            name="gpqa-diamond",
            task="gpqa_diamond_cot_zeroshot",
            task_file="gpqa/cot_zeroshot/gpqa_diamond_cot_zeroshot.yaml",
            metric="exact_match",
            filter="flexible-extract",
            chat=True,
            few_shot=0,
            generation={"temperature": "1.0", "do_sample": "True"},
            most_tokens=32768,
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
    """The suite of that name. Raises UsageError with those that exist."""
    if name in SUITES:
        return SUITES[name]
    known = ", ".join(f"`{suite}`" for suite in (*SUITES, "tau2"))
    raise UsageError(f"there is no suite `{name}`", hint=f"one of {known}; `published` for all that was published")


def local_files(suite: Suite, questions: Path) -> dict[str, str]:
    """The files of a local copy by split; `questions` may be the folder they are in. Raises UsageError for a gap."""
    if questions.is_dir():
        questions = questions / FileName(suite.file)
    files = {suite.questions: questions.absolute()}
    if suite.examples is not None:
        files[suite.examples] = questions.absolute().parent / FileName(f"{suite.examples}{questions.suffix}")
    for split, file in files.items():
        if not file.is_file():
            what = f"the {suite.few_shot} examples" if split == suite.examples else "the questions"
            raise UsageError(f"there is no file with {what} of `{suite.name}`", where=str(file))
    return {split: str(file) for split, file in files.items()}
