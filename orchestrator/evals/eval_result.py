"""The result of an evaluation suite: the answered questions, the score, and the JSON file.

Scores and shares are between 0 and 1.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import fmean, pvariance
from typing import Final

from orchestrator.bench.result import parse_strict
from orchestrator.bench.result_files import read_result_text
from orchestrator.core.errors import BenchError
from orchestrator.core.safe_paths import FileName
from orchestrator.core.validation import type_adapter

EVAL_RESULT_SCHEMA: Final = 3
BASELINE_DIR: Final = "baseline"  # directory of the baseline results


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """One answered question; `id` identifies the question across runs."""

    id: str
    correct: bool
    seed: int | None = None  # sampling seed or trial number; None if each question is asked once
    group: str = ""  # a domain; all domains have equal weight
    answer: str = ""  # prefix of the answer's digest


@dataclass(frozen=True, kw_only=True)
class QuestionKey:
    """The identity of a question across runs; `nth` distinguishes duplicates within a suite."""

    group: str
    id: str
    nth: int


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """One evaluation of one served model. `metric` and `task` are names of the harness."""

    schema_version: int
    suite: str
    task: str
    metric: str
    model: str
    harness: str  # name and version
    command: str
    answered: tuple[AnsweredQuestion, ...]
    limit: int | None = None  # number of questions; None for all
    max_tokens: int | None = None  # maximum length of an answer; None if unknown

    @cached_property
    def answers(self) -> Mapping[QuestionKey, tuple[bool, ...]]:
        """For each question, whether each answer was correct."""
        correct = defaultdict[QuestionKey, list[bool]](list)
        counts = defaultdict[tuple[int | None, str, str], int](int)
        for item in self.answered:
            counts[item.seed, item.group, item.id] += 1
            nth = counts[item.seed, item.group, item.id]
            correct[QuestionKey(group=item.group, id=item.id, nth=nth)].append(item.correct)
        return {question: tuple(answers) for question, answers in correct.items()}

    @property
    def score(self) -> float:
        """The share of correct answers: the mean over groups."""
        return fmean(fmean(shares) for shares in self.shares.values())

    @property
    def shares(self) -> Mapping[str, Sequence[Fraction]]:
        """The share of correct answers to each question, by group."""
        shares = defaultdict[str, list[Fraction]](list)
        for question, answers in self.answers.items():
            shares[question.group].append(Fraction(sum(answers), len(answers)))
        return shares

    @property
    def effective_answers(self) -> float:
        """The effective sample size: the equivalent number of independent answers; groups have equal weight.

        Several answers to one question are not independent, so the variance between questions counts (clustered
        sample, Korn and Graubard 1998, Survey Methodology 24:193). Without variance it is the number of questions.
        """
        groups = [list(map(float, group)) for group in self.shares.values()]
        share = fmean(map(fmean, groups))
        variance = sum(pvariance(group) / len(group) for group in groups) / len(groups) ** 2
        return share * (1 - share) / variance if variance > 0 else float(sum(map(len, groups)))

    @property
    def by_seed(self) -> Mapping[int, float]:
        """The score of each seed; empty without seeds."""
        seeds = sorted({item.seed for item in self.answered if item.seed is not None})
        return {seed: fmean(item.correct for item in self.answered if item.seed == seed) for seed in seeds}

    @property
    def is_deterministic(self) -> bool:
        """Whether all seeds gave identical answers, which means that the server did not sample."""
        answers = defaultdict[str, set[str]](set)
        for item in self.answered:
            answers[item.id].add(item.answer)
        return len(self.by_seed) > 1 and all(len(texts) == 1 and "" not in texts for texts in answers.values())


def eval_result_file(suite: str) -> FileName:
    """Return the file name that `deploy report` expects for a result."""
    return FileName(f"eval-{suite}.json")


def eval_result_to_json(result: EvalResult) -> str:
    """Return the result as JSON text."""
    return type_adapter(EvalResult).dump_json(result, indent=1, exclude_defaults=True).decode() + "\n"


def load_eval_result(file: Path) -> EvalResult:
    """Load a result. Raises BenchError if the file is unreadable, damaged, or of another schema version."""
    text, location = read_result_text(file, "eval result"), str(file)
    result = parse_strict(EvalResult, text, description="result of `deploy eval`", location=location)
    if result.schema_version != EVAL_RESULT_SCHEMA or not result.answered:
        raise BenchError(
            "the eval result has another schema version, or is empty", location=location, hint="run `deploy eval` again"
        )
    return result
