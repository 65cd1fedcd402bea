"""`deploy onboard model`: a checkpoint's own files become a model's file, each fact with what says so."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.commands.staging import hub_of
from orchestrator.core.catalogue import Catalogue, Kind, can_be_named
from orchestrator.core.document import Data, KeyPath, read_document
from orchestrator.core.errors import Problem, ProfileError, UsageError
from orchestrator.core.files import write_whole
from orchestrator.core.paths import Home
from orchestrator.core.validation import checked, model_of
from orchestrator.profile import ModelFile, Override, YamlLine, flow, yaml_text
from orchestrator.weights import Description, describe, hub_outline, local_outline

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_GIVEN: Final = "--set"


@dataclass(frozen=True, kw_only=True)
class OnboardedModel:
    """A model's file as it was written: where, its lines, and what is worth saying of it."""

    name: str
    path: Path
    lines: tuple[YamlLine, ...]
    notes: tuple[str, ...]

    def rows(self) -> Iterator[list[str]]:
        """For people: key, value, what says so."""
        for line in self.lines:
            yield [".".join(line.path), _shown(line.value), line.comment or _source(line.value)]

    def to_dict(self) -> dict[str, object]:
        """As plain JSON-able data."""
        facts = [{"key": ".".join(line.path), "value": line.value, "from": line.comment} for line in self.lines]
        return {"model": self.name, "path": str(self.path), "facts": facts, "notes": list(self.notes)}


def onboard_model(
    where: str,
    home: Home,
    *,
    name: str | None = None,
    revision: str | None = None,
    overrides: Sequence[str] = (),
    replace: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> OnboardedModel:
    """Write a model's file from the checkpoint in a directory, or of a repository on the hub.

    Raises UsageError for a name that is taken or cannot be one, WeightsError for a checkpoint that is not whole or
    contradicts itself, ProfileError with every fact that could not be read and how to give it; nothing is written then.
    """
    directory = _directory(where)
    if directory is not None and revision is not None:
        raise UsageError("a directory has no revision", hint="`--revision` is for a repository of the hub")
    given = [Override.parse(text) for text in overrides]
    name = _free_name(name or (directory.name if directory else where.partition("/")[2]).lower(), home, replace=replace)
    keys = [".".join(each.path) for each in given]
    if directory is not None:
        found, origin = describe(local_outline(directory), keys), {"kind": "directory", "location": str(directory)}
        gated = False
    else:
        outline, listing = hub_outline(where, revision, hub_of(environ))
        found, gated = describe(outline, keys), listing.gated
        origin = {"kind": "hub", "location": where, "revision": listing.commit}
    lines = _lines(name, origin, found, given, gated=gated)
    _require_valid(lines, found.missing, where)
    path = home.root / Kind.MODEL.value.replace("*", name)
    text = yaml_text(_head(name), lines)
    model_of(read_document(text, str(path)), ModelFile)  # what it says is what was checked
    return OnboardedModel(name=name, path=write_whole(path, text), lines=tuple(lines), notes=found.notes)


def _directory(where: str) -> Path | None:
    """The checkpoint's directory; None for a repository of the hub."""
    path = Path(where).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.exists() or not _REPOSITORY.fullmatch(where):
        hint = "a checkpoint's directory, or a repository as `OWNER/NAME`"
        raise UsageError(f"`{where}` is neither a directory nor the name of a repository", hint=hint)
    return None


def _free_name(name: str, home: Home, *, replace: bool) -> str:
    if not can_be_named(name) or "/" in name:
        hint = "give one: `--name NAME`, of letters, digits, `.`, `_`, `+` and `-`"
        raise UsageError(f"`{name}` cannot be the name of a model", hint=hint)
    if not replace:
        require_free(Kind.MODEL, name, home)
    return name


def require_free(kind: Kind, name: str, home: Home) -> None:
    """Raises UsageError where there is a file of that kind and name, here or among those that ship."""
    catalogue = Catalogue.of(home)
    if (path := catalogue.find(kind, name)) is not None:
        ours = path.is_relative_to(home.root)
        hint = "`--replace` writes over it" if ours else "`--replace` lets yours take the place of the shipped one"
        raise UsageError(
            f"there is a {kind.name.lower()} `{name}` already",
            where=catalogue.shown(path),
            hint=f"{hint}; or give a `--name NAME`",
        )


def _lines(
    name: str, origin: Mapping[str, Data], found: Description, given: Sequence[Override], *, gated: bool
) -> list[YamlLine]:
    """The lines of the file in the order of its schema: what was read, and over it what the user says."""
    lines: dict[tuple[str, ...], YamlLine] = {
        ("source",): YamlLine(path=("source",), value="config.json and safetensors headers of the checkpoint"),
        ("origin",): YamlLine(path=("origin",), value=dict(origin)),
        ("served_name",): YamlLine(path=("served_name",), value=name, comment="by its file; another with `--set`"),
    }
    if gated:
        lines["gated",] = YamlLine(path=("gated",), value=True, comment="the hub says so")
    for key, fact in found.facts.items():
        path = tuple(key.split(".", 1))
        if path[0] == "flags":
            setting: Data = {"value": str(fact.value), "origin": "recipe", "source": fact.name}
            lines[path] = YamlLine(path=path, value=setting)
        elif isinstance(fact.value, bool | int | str):
            lines[path] = YamlLine(path=path, value=fact.value, comment=fact.name)
    for override in given:
        lines = {path: line for path, line in lines.items() if path[: len(override.path)] != override.path}
        if override.value is not None:
            lines[override.path] = YamlLine(path=override.path, value=override.value, comment=_GIVEN)
    order = ["source", *ModelFile.model_fields]
    return sorted(lines.values(), key=lambda line: order.index(line.path[0]) if line.path[0] in order else len(order))


def _require_valid(lines: Sequence[YamlLine], missing: Mapping[str, Problem], where: str) -> None:
    """Raise ProfileError with what is missing, and what the user's `--set` may not say."""
    data: dict[str, Data] = {}
    for line in lines:
        holder = data
        for key in line.path[:-1]:
            inner = holder.setdefault(key, {})
            holder = inner if isinstance(inner, dict) else {}
        holder[line.path[-1]] = line.value
    given = {".".join(line.path) for line in lines if line.comment == _GIVEN}

    def place(path: KeyPath) -> str:
        key = ".".join(map(str, path))
        return f"{_GIVEN} {key}" if any(key.startswith(said) for said in given) else where

    problems = list(missing.values())
    try:
        checked(data, ModelFile, place=place, message="")
    except ProfileError as error:
        problems += [each for each in error.problems if not _is_asked(each, missing)]
    if problems:
        raise ProfileError("the model's file cannot be written: not every fact is known", problems=problems)


def _is_asked(problem: Problem, missing: Mapping[str, Problem]) -> bool:
    """Whether it is said already: a key that is asked for is missing, or its section is not whole without it."""
    named = problem.message.partition("`")[2].partition("`")[0]
    return any(key == named or key.startswith(f"{named}.") for key in missing)


def _head(name: str) -> list[str]:
    return [
        "yaml-language-server: $schema=../model.schema.json",
        f"{name}, as `deploy onboard model` read its checkpoint: behind each fact stands what says so.",
    ]


def _shown(value: Data) -> str:
    if isinstance(value, dict):
        return str(value["value"]) if "value" in value else ", ".join(str(each) for each in value.values())
    return f"{value:,}" if type(value) is int else flow(value)


def _source(value: Data) -> str:
    return str(value.get("source", "")) if isinstance(value, dict) else ""
