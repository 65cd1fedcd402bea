"""Strict reading of YAML, with the location of every key, and writing of YAML for other programs.

PyYAML keeps the last of two equal keys, and reads `no`, `012` and `22:30` as surprising types. Here a duplicate key is
an error, and every plain value is text, except `true`, `false`, `null`, decimal integers and decimal fractions.
Anchors, aliases and tags are rejected, so that each value is written where it is used.

The reader consumes the parser's events one by one instead of composing a document. Aliases are rejected and never
followed, and reading ends at a fixed depth (`yaml.compose` crashes at 100,000 levels, PyYAML 6.0.3).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import yaml

from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.core.text import first_control_char

Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
KeyPath: TypeAlias = tuple[str | int, ...]

MAX_DEPTH: Final = 20  # levels of nesting; the shipped files have six
_DIGITS: Final = 40  # a longer number is text: no size, port or count has so many digits
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*(_[0-9]+)*)\Z")
_FRACTION: Final = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+\Z")
_WIDTH: Final = 118
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}
# libyaml is ten times as fast; PyYAML's wheels contain it.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BASE: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Document:
    """One YAML file: its name in messages, its data, and the line of each key path, counted from 1."""

    name: str
    data: dict[str, Data]
    lines: Mapping[KeyPath, int]

    def location(self, path: KeyPath) -> str:
        """Return `file:line` of a key path, or of the nearest parent that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name


def read_document(text: str, name: str) -> Document:
    """Read a mapping from YAML `text`; `name` is the file's name in messages.

    Raises ProfileError with every problem found: syntax, duplicate keys, anchors, tags, keys that are not text.
    """
    reader = _Reader(text, name)
    try:
        data = reader.document()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ProfileError(f"invalid YAML: {error.problem}", location=f"{name}{line}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a lone surrogate, an escape beyond Unicode
        raise ProfileError(f"not text: {str(error).partition(chr(10))[0]}", location=name) from error
    if reader.problems:
        raise ProfileError(f"cannot read `{name}`", problems=truncate_problems(reader.problems))
    return Document(name, data, reader.lines)


def read_scalar(text: str) -> Data:
    """Return a plain value as read from a file: `--set tp=4` gives a number, `--set name=on` text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text) and len(text) <= _DIGITS:
        return int(text)
    if _FRACTION.match(text) and math.isfinite(number := float(text)):
        return number
    return text


def dump_yaml(data: object, *comments: str, width: int = _WIDTH) -> str:
    """Return YAML: comments, then data in the order of its keys; multi-line text as blocks; no aliases."""
    head = "".join(f"# {comment}\n" for comment in comments)
    return head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=width, allow_unicode=True)


def dump_inline(value: object) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.dump(
        [value], Dumper=_Dumper, sort_keys=False, width=1 << 30, allow_unicode=True, default_flow_style=True
    )
    return text[1:-2]  # without the brackets of the list


class _Dumper(_BASE):  # type: ignore[misc] # its type is known only at run time
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's own name
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(str, _text)  # for members of an Enum


class _Reader:
    """A builder of data from the parser's events, which records the line of each key path."""

    def __init__(self, text: str, name: str) -> None:
        self._events = yaml.parse(text, Loader=_LOADER)
        self._name = name
        self.problems: list[Problem] = []
        self.lines: dict[KeyPath, int] = {}

    def document(self) -> dict[str, Data]:
        """Read the mapping in the file; an empty file gives an empty one."""
        data: Data = {}
        begun = False
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent) and begun:
                self._add_problem("the file has a second document", event, "remove it, from the line `---`")
                break
            if isinstance(event, yaml.NodeEvent):
                begun = True
                data = self._value(event, (), _line(event))
        if data is None:
            return {}
        if not isinstance(data, dict):
            self.problems.append(Problem("expected a mapping of keys to values", f"{self._name}:1", ""))
            return {}
        return data

    def _add_problem(self, message: str, event: yaml.Event, hint: str = "") -> None:
        self.problems.append(Problem(message, f"{self._name}:{_line(event)}", hint))

    def _value(self, event: yaml.Event, path: KeyPath, line: int) -> Data:
        """Read the whole value that begins with `event`."""
        self._check(event)
        self.lines.setdefault(path, line)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.AliasEvent):
            return None
        if len(path) >= MAX_DEPTH:
            location = f"{self._name}:{_line(event)}"
            raise ProfileError(f"nested deeper than {MAX_DEPTH} levels", location=location, hint="flatten the value")
        return self._read_mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)

    def _read_mapping(self, path: KeyPath) -> dict[str, Data]:
        data: dict[str, Data] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line, key = _line(event), str(event.value) if isinstance(event, yaml.ScalarEvent) else None
            if key is None:
                self._value(event, (*path, ""), line)
                self._add_problem("a key must be text", event)
            else:
                self._check(event)
            if is_repeated := key in data:
                first = self.lines[(*path, str(key))]
                self._add_problem(f"duplicate key `{key}`", event, f"the first is on line {first}; remove one")
            value = self._value(next(self._events), (*path, key or ""), line)
            if key is not None and not is_repeated:
                data[key] = value
        return data

    def _list(self, path: KeyPath) -> list[Data]:
        data: list[Data] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            data.append(self._value(event, (*path, len(data)), _line(event)))
        return data

    def _check(self, event: yaml.Event) -> None:
        """Record a problem for aliases, anchors, tags and control characters."""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._add_problem("anchors and aliases are not supported", event, "repeat the value")
        elif tag := getattr(event, "tag", None):
            self._add_problem(f"the tag `{tag}` is not allowed", event, "write a plain value")
        if isinstance(event, yaml.ScalarEvent) and (hidden := first_control_char(event.value, lines=True)):
            self._add_problem(f"a text cannot contain {hidden!r}", event)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _scalar(event: yaml.ScalarEvent) -> Data:
    if event.style:  # quoted or a block, hence text
        return str(event.value)
    return read_scalar(event.value) if event.value else None
