"""What an evaluation gave: which question was answered right, by which seed; as a file too.

A share is a part of 1.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import fmean, pvariance
from typing import Final

from pydantic import TypeAdapter

from orchestrator.bench.result import parse_strict
from orchestrator.core.errors import BenchError
from orchestrator.core.safe_paths import FileName

OUTCOME_SCHEMA: Final = 1
BASELINE_FOLDER: Final = "baseline"  # beside an outcome: that of the server that was asked the same


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """One answered question; `id` names the question wherever it is asked."""

    id: str
    right: bool
    seed: int | None = None  # of the sampling, or the number of the trial; None where each question is asked once
    group: str = ""  # a domain: each counts as much as any other, however many questions it has
    answer: str = ""  # how the digest of the answer begins: two that are alike have the same


@dataclass(frozen=True, kw_only=True)
class AskedQuestion:
    """One question, wherever it is asked; `nth` tells those apart that a suite has twice."""

    group: str
    id: str
    nth: int


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """One evaluation of one served model. `metric` and `task` are the harness's own names."""

    schema_version: int
    suite: str
    task: str
    metric: str
    model: str
    harness: str  # its name and version
    command: str
    items: tuple[AnsweredQuestion, ...]
    limit: int | None = None  # how many questions were asked for; None for all
    most_tokens: int | None = None  # that an answer might have; None where that was not kept

    @cached_property
    def answers(self) -> Mapping[AskedQuestion, tuple[bool, ...]]:
        """Which answers to each question were right."""
        found = defaultdict[AskedQuestion, list[bool]](list)
        seen = defaultdict[tuple[int | None, str, str], int](int)
        for item in self.items:
            seen[item.seed, item.group, item.id] += 1
            nth = seen[item.seed, item.group, item.id]
            found[AskedQuestion(group=item.group, id=item.id, nth=nth)].append(item.right)
        return {question: tuple(each) for question, each in found.items()}

    @property
    def score(self) -> float:
        """Share of right answers; where there are groups, the mean of theirs."""
        return fmean(fmean(shares) for shares in self.shares.values())

    @property
    def shares(self) -> Mapping[str, Sequence[Fraction]]:
        """The share of right answers to each question, by group."""
        found = defaultdict[str, list[Fraction]](list)
        for question, each in self.answers.items():
            found[question.group].append(Fraction(sum(each), len(each)))
        return found

    @property
    def effective_items(self) -> float:
        """How many independent answers these are worth."""
        return effective_items(tuple(self.shares.values()))

    @property
    def by_seed(self) -> Mapping[int, float]:
        """The score of each seed by itself; empty where there are none."""
        seeds = sorted({item.seed for item in self.items if item.seed is not None})
        return {seed: fmean(item.right for item in self.items if item.seed == seed) for seed in seeds}

    @property
    def repeats_itself(self) -> bool:
        """Whether every seed gave the same answer to each question, word for word: nothing was sampled."""
        told = defaultdict[str, set[str]](set)
        for item in self.items:
            told[item.id].add(item.answer)
        return len(self.by_seed) > 1 and all(len(each) == 1 and "" not in each for each in told.values())

    def pass_hat(self) -> Iterator[tuple[int, tuple[Sequence[float], ...]]]:
        """Of each k: by group, the chance that k trials of a task all succeed, C(right, k) / C(trials, k).

        As tau2's `metrics/agent_metrics.py` computes it, up to the fewest trials that a task has.
        """
        for k in range(1, min(map(len, self.answers.values())) + 1):
            chances = defaultdict[str, list[float]](list)
            for question, each in self.answers.items():
                chances[question.group].append(math.comb(sum(each), k) / math.comb(len(each), k))
            yield k, tuple(chances.values())


def effective_items(groups: Sequence[Sequence[Fraction | float]]) -> float:
    """How many independent answers shares of questions are worth: with one answer to each, their number.

    Several answers to one question are not independent: what varies is counted from question to question (the effective
    size of a clustered sample, Korn and Graubard 1998, Survey Methodology 24:193). `groups` count alike. Where nothing
    varies, it is the number of questions.
    """
    shares = [list(map(float, each)) for each in groups]
    share = fmean(map(fmean, shares))
    variance = sum(pvariance(each) / len(each) for each in shares) / len(shares) ** 2
    return share * (1 - share) / variance if variance > 0 else float(sum(map(len, groups)))


_OUTCOME: Final = TypeAdapter(EvalResult)


def outcome_file(suite: str) -> FileName:
    """What the file of a suite's outcome is called; `deploy report` looks for it."""
    return FileName(f"eval-{suite}.json")


def outcome_to_json(outcome: EvalResult) -> str:
    """The outcome as JSON text."""
    return _OUTCOME.dump_json(outcome, indent=1, exclude_defaults=True).decode() + "\n"


def outcome_from_json(text: str, *, where: str) -> EvalResult:
    """Read an outcome; `where` names its origin. Raises BenchError for another schema or a damaged file."""
    outcome = parse_strict(_OUTCOME, text, description="outcome of `deploy eval`", location=where)
    if outcome.schema_version != OUTCOME_SCHEMA or not outcome.items:
        raise BenchError("an outcome of another version, or an empty one", where=where, hint="evaluate again")
    return outcome
