"""Shared code of `add model` and `add engine`: catalog entries, the user's values, and missing values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from orchestrator.core.catalog import Catalog, EntryKind, is_valid_name
from orchestrator.core.errors import Problem, ProfileError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.core.validation import model_of, validate
from orchestrator.core.yaml_document import Data, KeyPath, dump_inline, read_document
from orchestrator.profiles.layers import Override
from orchestrator.profiles.yaml_writer import YamlLine, yaml_text

_SET_OPTION: Final = "--set"


@dataclass(frozen=True, kw_only=True)
class FactOutput:
    """A key of a catalog entry, with its value and source."""

    key: str
    value: Any  # as in YAML
    source: str = field(metadata={"serialization_alias": "from"})


@dataclass(frozen=True, kw_only=True)
class EntryOutput:
    """A new catalog entry and its file; `kind` is `model` or `engine`."""

    kind: str
    name: str
    path: Path
    facts: tuple[FactOutput, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, kind: EntryKind, name: str, home: Home, lines: Sequence[YamlLine], notes: Iterable[str]
    ) -> "EntryOutput":
        """Return the entry with these lines in a home's catalog."""
        facts = (FactOutput(key=".".join(line.path), value=line.value, source=line.comment) for line in lines)
        path = home.root / kind.file(name)
        return cls(kind=kind.name.lower(), name=name, path=path, facts=tuple(facts), notes=tuple(notes))

    def rows(self) -> Iterator[list[str]]:
        """Yield key, value and source of each fact, as table rows."""
        for fact in self.facts:
            yield [fact.key, _display_value(fact.value), fact.source or _source(fact.value)]


def write_entry(file: EntryOutput, lines: Sequence[YamlLine], head: Sequence[str], model: type[BaseModel]) -> None:
    """Write the catalog entry atomically; the comments `head` precede its lines."""
    text = yaml_text([f"yaml-language-server: $schema=../{file.kind}.schema.json", *head], lines)
    model_of(read_document(text, str(file.path)), model)  # raises if the text is not a valid entry
    atomic_write(file.path, text)


def free_name(kind: EntryKind, name: str, home: Home, *, replace: bool) -> None:
    """Raise UsageError for an invalid name, and for a used name unless `replace`."""
    if not is_valid_name(name) or "/" in name:
        hint = "`--name NAME`, with letters, digits, `.`, `_`, `+` and `-`"
        raise UsageError(f"invalid {kind.name.lower()} name `{name}`", hint=hint)
    if not replace:
        require_free(kind, name, home)


def require_free(kind: EntryKind, name: str, home: Home) -> None:
    """Raise UsageError if the catalog has an entry of that kind and name, user-defined or shipped."""
    catalog = Catalog.of(home)
    if (path := catalog.find(kind, name)) is not None:
        raise UsageError(
            f"{kind.name.lower()} `{name}` exists",
            location=catalog.display_path(path),
            hint="`--replace` replaces it; or choose `--name NAME`",
        )


def entry_lines(
    lines: Mapping[tuple[str, ...], YamlLine], overrides: Sequence[Override], model: type[BaseModel]
) -> list[YamlLine]:
    """Return the lines in schema order; the user's values replace detected values."""
    for override in overrides:
        lines = {path: line for path, line in lines.items() if path[: len(override.path)] != override.path}
        if override.value is not None:
            lines[override.path] = YamlLine(path=override.path, value=override.value, comment=_SET_OPTION)
    order = ["source", *model.model_fields]
    return sorted(lines.values(), key=lambda line: order.index(line.path[0]) if line.path[0] in order else len(order))


def require_complete(
    lines: Sequence[YamlLine], missing: Mapping[str, Problem], location: str, model: type[BaseModel]
) -> None:
    """Raise ProfileError with the missing values, and with invalid values of the user's `--set`."""
    data: dict[str, Data] = {}
    for line in lines:
        holder = data
        for key in line.path[:-1]:
            inner = holder.setdefault(key, {})
            holder = inner if isinstance(inner, dict) else {}
        holder[line.path[-1]] = line.value
    overridden = {".".join(line.path) for line in lines if line.comment == _SET_OPTION}

    def location_of(path: KeyPath) -> str:
        key = ".".join(map(str, path))
        return f"{_SET_OPTION} {key}" if any(key.startswith(key_prefix) for key_prefix in overridden) else location

    problems = list(missing.values())
    try:
        validate(data, model, location=location_of, message="")
    except ProfileError as error:
        problems += [problem for problem in error.problems if not _is_reported_missing(problem, missing)]
    if problems:
        kind = model.__name__.removesuffix("File").lower()
        raise ProfileError(f"cannot write the {kind}'s file: facts are missing", problems=problems)


def _is_reported_missing(problem: Problem, missing: Mapping[str, Problem]) -> bool:
    """Return whether a missing key already explains a problem, itself or in its section."""
    key_named = problem.message.partition("`")[2].partition("`")[0]
    return any(key == key_named or key.startswith(f"{key_named}.") for key in missing)


def _display_value(value: Data) -> str:
    if isinstance(value, dict):
        return str(value["value"]) if "value" in value else ", ".join(str(item) for item in value.values())
    return f"{value:,}" if type(value) is int else dump_inline(value)


def _source(value: Data) -> str:
    return str(value.get("source", "")) if isinstance(value, dict) else ""
