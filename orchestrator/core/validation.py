"""Validation of files against pydantic models, with every problem reported at its file and line."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.core import files
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.core.safe_paths import ImageReference
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.text import first_control_char
from orchestrator.core.yaml_document import Data, Document, KeyPath, read_document

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
# Old names of renamed keys, with the new ones: a search by spelling would often suggest another key.
RENAMED_KEYS: Final[Mapping[str, str]] = {
    "about": "context",
    "accept_known_bad": "allow_known_issues",
    "allow_public": "allow_unauthenticated",
    "answer": "expected",
    "cache": "kv_cache",
    "cached_share": "cache_hit_rate",
    "claim": "pvc",
    "clients": "allowed_clients",
    "climb": "ramp",
    "drops": "removed_when",
    "env_not": "without_env",
    "filler": "filler_words",
    "grace": "termination_grace",
    "groups": "supplemental_groups",
    "hazards": "warnings",
    "healing": "restart_policy",
    "image_before": "image_older_than",
    "image_on_node": "image_pull_policy",
    "inexact": "nondeterministic",
    "items": "questions",
    "kind": "source",
    "left_out": "inactive_match",
    "known_bad": "blocked",
    "limits": "slo",
    "location": "path",
    "metrics_from": "allowed_scrapers",
    "models": "architectures",
    "mtp_weights": "mtp_weights_size",
    "options": "sbatch_options",
    "origin": "checkpoint",
    "patience": "pending_timeout",
    "pending": "queue_timeout",
    "prefixes": "num_prefixes",
    "product": "gpu_product",
    "quantisation": "quantization",
    "question": "prompt",
    "rates_rps": "request_rates",
    "restarts": "max_attempts",
    "secret": "api_key_secret",
    "service": "service_type",
    "shm": "shm_size",
    "signal": "signal_before_end",
    "silence": "progress_deadline",
    "template": "dockerfile",
    "time": "time_limit",
    "tokens": "max_tokens",
    "up_to_rps": "max_rps",
    "waiting": "timeouts",
    "weights": "weights_size",
    "what": "summary",
    "when": "match",
    "without": "exclude",
    "without_patches": "skip_patches",
}
_MAX_FILE: Final = 8 << 20  # bytes of a file that a person writes
_SHOWN: Final = 60  # characters of a value in a message


def _one_line(text: str) -> str:
    if hidden := first_control_char(text):
        raise ValueError(f"a text of one line cannot contain {hidden!r}")
    return text


def _image_name(text: str) -> str:
    if "@" in text:
        raise ValueError("expected an image without `@sha256:…`")
    ImageReference(text)
    return text


def _number_as_text(value: object) -> object:
    return str(value) if type(value) is int else value


# Texts are written into scripts, labels and comments, so each is a single line unless its field is prose.
Text: TypeAlias = Annotated[str, AfterValidator(_one_line)]
Word: TypeAlias = Annotated[Text, Field(pattern=r"^[^\s-]\S*$")]  # a single argument of a command, and never an option
# In an image; a Dockerfile contains it.
AbsolutePath: TypeAlias = Annotated[str, Field(pattern="^/[A-Za-z0-9_.+@/-]*$")]
ImageName: TypeAlias = Annotated[str, AfterValidator(_image_name)]  # in a Dockerfile's FROM, followed by a digest
# A text that YAML reads as a number if it has digits only.
TextOrNumber: TypeAlias = Annotated[str, BeforeValidator(_number_as_text, json_schema_input_type=int | str)]
VariableName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class StrictModel(BaseModel):
    """A model of a file: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


Model = TypeVar("Model", bound=BaseModel)


def read_file(path: Path, name: str) -> Document:
    """Read the YAML file at `path`; messages call it `name`. Raises ProfileError with every problem and its line."""
    document = _read_document(_read_text(path, name), name)
    return replace(document, data=deepcopy(document.data))


def read_model(path: Path, kind: type[Model], name: str) -> Model:
    """Read the YAML file at `path` as a model `kind`. Raises ProfileError with every problem and its line."""
    model = _read_model(_read_text(path, name), kind, name)
    assert isinstance(model, kind)  # noqa: S101 - for the type
    return model


def read_entry(catalog: Catalog, kind: EntryKind, name: str, model: type[Model], *, location: str = "") -> Model:
    """Read the catalog entry of a name that the user wrote at `location`.

    Raises ProfileError if there is none, or if it is invalid, with every problem and its line.
    """
    path = catalog.path(kind, name, location=location)
    return read_model(path, model, catalog.display_path(path))


def _read_text(path: Path, name: str) -> str:
    try:
        return files.read_file(path, max_bytes=_MAX_FILE).decode()
    except (OSError, ValueError) as error:  # ValueError: bytes that are not UTF-8, a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProfileError(f"cannot read `{name}`: {reason}", location=name) from error


@lru_cache(maxsize=256)  # a command plans up to a hundred profiles, which share files
def _read_document(text: str, name: str) -> Document:
    return read_document(text, name)


@lru_cache  # each plan reads every known issue
def _read_model(text: str, kind: type[BaseModel], name: str) -> BaseModel:
    return model_of(read_document(text, name), kind)


def model_of(document: Document, kind: type[Model]) -> Model:
    """Validate a document as a model `kind`. Raises ProfileError with every problem and its line."""
    return validate(document.data, kind, location=document.location, message=f"`{document.name}` is not valid")


def validate(data: Mapping[str, Data], kind: type[Model], *, location: Callable[[KeyPath], str], message: str) -> Model:
    """Validate `data` as a model `kind`. Raises ProfileError with `message` and every problem.

    `location` returns the location of a key path.
    """
    try:
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems = validation_problems(error, location, data=data, kind=kind)
    raise ProfileError(message, problems=problems)


def drop_unknown_keys(data: dict[str, Data], kind: type[BaseModel]) -> dict[str, Data]:
    """Return a copy of the data without keys that the model `kind` does not have."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    try:
        kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        unknown = (details for details in error.errors(include_url=False) if details["type"] == "extra_forbidden")
        for *parents, key in (_written(details, data) for details in unknown):
            holder: Any = copy
            for step in parents:
                holder = holder[step]
            holder.pop(key, None)
    return copy


@cache
def type_adapter(form: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a type, or a tuple of one
    """Return the parser and serializer of a type, built at its first use."""
    return TypeAdapter(form)


def validation_problems(
    error: ValidationError,
    location: Callable[[KeyPath], str] = lambda _: "",
    *,
    data: Any = None,  # noqa: ANN401 - data of any shape is looked into
    kind: type[BaseModel] | None = None,
) -> tuple[Problem, ...]:
    """Return the problems of a validation error; `location` returns the location of a key path.

    With the validated `data`, messages show the key path that the user wrote: pydantic's own path also names members of
    a union, which are not keys. With the model `kind`, an unknown key gets a hint with the most similar known one.
    """
    return truncate_problems(_problems(error, location, data, kind))


def _problems(
    error: ValidationError,
    location: Callable[[KeyPath], str],
    data: Any,  # noqa: ANN401
    kind: type[BaseModel] | None,
) -> Iterator[Problem]:
    for details in error.errors(include_url=False):
        path = details["loc"] if data is None else _written(details, data)
        yield Problem(_message(details, path), location(path), _hint(details, kind))


def _written(details: ErrorDetails, data: Any) -> KeyPath:  # noqa: ANN401
    """Return the steps of an error's location that are keys or indexes of `data`, and the missing key, if any."""
    path: KeyPath = ()
    for step in details["loc"]:
        is_inside = isinstance(data, dict) and step in data
        is_inside = is_inside or (isinstance(data, list) and isinstance(step, int) and step < len(data))
        if is_inside:
            path, data = (*path, step), data[step]
    return (*path, details["loc"][-1]) if details["type"] == "missing" else path


def _message(details: ErrorDetails, path: KeyPath) -> str:
    key = ".".join(str(step) for step in path)
    kind = details["type"]
    if kind == "missing":
        return f"`{key}` is missing"
    if kind == "extra_forbidden":
        return f"unknown key `{key}`"
    value = _show(details["input"])
    if kind == "string_pattern_mismatch":
        return f"`{key}` has an invalid format, found {value}"
    if kind in _EXPECTED:
        return f"`{key.removesuffix('.value')}` must be {_EXPECTED[kind]}, found {value}"
    text = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    text = text[:1].lower() + text[1:]
    return f"`{key}`: {text}, found {value}" if key else text


def _hint(details: ErrorDetails, kind: type[BaseModel] | None) -> str:
    """Return a hint: for an unknown key, its new or nearest name; for text of a wrong format, the field's description.

    A field without a description gets its pattern.
    """
    if details["type"] == "string_pattern_mismatch":
        *above, name = [step for step in details["loc"] if isinstance(step, str)]
        successor = _known_keys(kind, above).get(name) if kind else None
        return successor or f"it matches `{details['ctx']['pattern']}`"
    if details["type"] != "extra_forbidden" or kind is None:
        return ""
    *parents, key = details["loc"]
    keys, renamed = _known_keys(kind, parents), RENAMED_KEYS.get(str(key))
    return f"did you mean `{renamed}`?" if renamed in keys else did_you_mean(str(key), keys)


def _known_keys(kind: type[BaseModel], parents: Sequence[int | str]) -> dict[str, str | None]:
    """Return the keys that are valid below `parents`, each with its description.

    A step that is not a field is skipped: it is an index, or the name of a union member.
    """
    kinds = {kind}
    for step in parents:
        fields = [field for kind in kinds if (field := kind.model_fields.get(str(step)))]
        if fields:
            kinds = {inner for field in fields for inner in _models_in(field.annotation)}
    return {field.alias or name: field.description for kind in kinds for name, field in kind.model_fields.items()}


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _show(value: object) -> str:
    text = "nothing" if value is None else f"`{value}`" if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
