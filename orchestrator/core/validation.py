"""What pydantic finds wrong with data, as problems with their places."""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.core.errors import Problem


class StrictModel(BaseModel):
    """What a file of ours says: an unknown key is an error, and nothing is changed once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def faults_in(
    error: ValidationError, place: Callable[[tuple[int | str, ...]], str] = lambda _: "", *, skip: int = 0
) -> tuple[Problem, ...]:
    """One problem a fault: the key and what is wrong with it, at its `place` (by key path).

    `skip` steps at the beginning of each path name the member of a union, and are no keys.
    """
    return tuple(_problem(details["msg"], details["loc"][skip:], place) for details in error.errors(include_url=False))


def _problem(message: str, path: tuple[int | str, ...], place: Callable[[tuple[int | str, ...]], str]) -> Problem:
    text = message.removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    key = ".".join(str(step) for step in path)
    return Problem(f"`{key}`: {text}" if key else text, place(path))
