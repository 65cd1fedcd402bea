"""From the composed document to a `Profile`, with every fault at its file and line."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.core.document import KeyPath
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.nearest import did_you_mean
from orchestrator.profile.compose import Composed
from orchestrator.profile.schema import Profile

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def validate(composed: Composed, name: str) -> Profile:
    """The profile `name`. Raises ProfileError with all its faults at once."""
    try:
        return Profile.model_validate(composed.data)
    except ValidationError as error:
        problems = tuple(_problems(error, composed))
    raise ProfileError(f"profile `{name}` is not valid", problems=problems)


def _problems(error: ValidationError, composed: Composed) -> Iterator[Problem]:
    seen = set()
    for details in error.errors(include_url=False):
        path = _path(details["loc"], composed)
        problem = Problem(_message(details, path), composed.place(path), _hint(details))
        if (key := (problem.message, problem.where)) not in seen:
            seen.add(key)
            yield problem


def _path(location: KeyPath, composed: Composed) -> KeyPath:
    """The key path a user wrote: pydantic names the members of a union as well, and those are not keys."""
    path: KeyPath = ()
    data: Any = composed.data  # walks data of any shape
    for step in location:
        inside = isinstance(data, dict) and step in data
        inside = inside or (isinstance(data, list) and isinstance(step, int) and step < len(data))
        if not inside:
            missing = isinstance(data, dict) and step not in {"bool", "int", "float", "str"}
            return (*path, step) if missing else path
        path = (*path, step)
        data = data[step]
    return path


def _message(details: ErrorDetails, path: KeyPath) -> str:
    key = ".".join(str(step) for step in path)
    kind = details["type"]
    if kind == "missing":
        return f"`{key}` is missing"
    if kind == "extra_forbidden":
        return f"unknown key `{key}`"
    found = _show(details["input"])
    if kind in _EXPECTED:
        return f"`{key}` must be {_EXPECTED[kind]}, found {found}"
    return f"`{key}`: {details['msg'].removeprefix('Value error, ').removeprefix('Input ')}, found {found}"


def _hint(details: ErrorDetails) -> str:
    if details["type"] != "extra_forbidden":
        return ""
    *parents, key = details["loc"]
    return did_you_mean(str(key), _known_keys(parents))


def _known_keys(parents: list[int | str]) -> tuple[str, ...]:
    model: type[BaseModel] = Profile
    for parent in parents:
        field = model.model_fields.get(str(parent))
        inner = _model_of(field.annotation) if field else None
        if inner is None:
            return ()
        model = inner
    return tuple(model.model_fields)


def _model_of(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_of(argument)) is not None:
            return found
    return None


def _show(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else f"`{value}`"
    return text if len(text) <= 60 else text[:57] + "…"
