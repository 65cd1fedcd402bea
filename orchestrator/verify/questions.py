"""Questions with one right answer: what is asked, and whether an answer is that one."""

from typing import Final

from orchestrator.plan.plan import SmokeQuestion
from orchestrator.profiles.schema import FILLER

_SENTENCE: Final = "On day {day} the sea was calm and the wind came from the west."
_LENGTH: Final = len(_SENTENCE.split())


def prompt_of(question: SmokeQuestion) -> str:
    """What a user asks, with the filler in its place."""
    return question.prompt.replace(FILLER, filler(question.filler_words))


def filler(words: int) -> str:
    """So many words that mean nothing; no two of its sentences are the same.

    A question with an exact answer of a generated model depends on each of them: another text needs other answers.
    """
    sentences = (_SENTENCE.format(day=day) for day in range(1, words // _LENGTH + 2))
    return " ".join(" ".join(sentences).split()[:words])


def is_correct(question: SmokeQuestion, answer: str) -> bool:
    """Return whether an answer is correct, ignoring case, white space and a full stop at the end."""
    return _essence(answer) == _essence(question.expected)


def _essence(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").rstrip().casefold()
