"""YAML, read strictly, with the place of every key kept.

PyYAML keeps the last of two equal keys and reads `no`, `012` and `22:30` as other types than they look. Here a
duplicate key is an error, and only `true`, `false`, `null`, decimal integers and decimal fractions are anything but
text. Anchors, aliases and tags are refused: a value stands where it is read.

The parser's events are read one by one: an alias is refused and never followed, and what is nested deeper than anything
of ours ends the reading.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import yaml

from orchestrator.core.errors import DeployError, Problem, ProfileError, first_of
from orchestrator.core.text import hidden_in

Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
KeyPath: TypeAlias = tuple[str | int, ...]

DEEPEST: Final = 20  # levels of nesting; our own files have six
_DIGITS: Final = 40  # a longer number is text: no size, port or count has as many
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*(_[0-9]+)*)\Z")
_FRACTION: Final = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+\Z")
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser is ten times as fast


@dataclass(frozen=True)
class Document:
    """One file: its name as shown to the user, its data, and where each key path stands (1-based line)."""

    name: str
    data: dict[str, Data]
    lines: Mapping[KeyPath, int]

    def place(self, path: KeyPath) -> str:
        """`file:line` of a key path, or of the nearest thing that holds it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name


def read_document(text: str, name: str, *, fault: type[DeployError] = ProfileError) -> Document:
    """Read a mapping from YAML `text`; `name` is the file's name in messages.

    Raises `fault` with every problem found: syntax, duplicate keys, anchors, tags, keys that are not text.
    """
    reader = _Reader(name)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reader.take(event)
            if len(reader.open) > DEEPEST:
                raise fault(f"this is nested deeper than {DEEPEST} levels", where=f"{name}:{_line(event)}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise fault(f"this is not YAML: {error.problem}", where=f"{name}{line}") from error
    except yaml.reader.ReaderError as error:
        raise fault(f"this is not text: {error.reason}", where=name) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: half of a surrogate pair, an escape beyond Unicode
        raise fault(f"this is not text: {error}", where=name) from error
    data = {} if reader.root is None else reader.root
    if not isinstance(data, dict):
        reader.refuse("expected a mapping of keys to values", 1)
        data = {}
    if reader.problems:
        raise fault(f"`{name}` cannot be read", problems=first_of(reader.problems))
    return Document(name, data, reader.lines)


def read_scalar(text: str) -> Data:
    """One value as it would be read in a file: `--set tp=4` means the number, `--set name=on` the word."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text) and len(text) <= _DIGITS:
        return int(text)
    if _FRACTION.match(text) and math.isfinite(number := float(text)):
        return number
    return text


@dataclass
class _Open:
    """A mapping or list that is being read; `key` is the one whose value comes next."""

    holder: dict[str, Data] | list[Data]
    path: KeyPath
    key: str | None = None
    line: int = 0  # of the key
    dropped: bool = False  # the value belongs to a key that was refused


class _Reader:
    """Turns the parser's events into data and remembers where each key path was."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.lines: dict[KeyPath, int] = {}
        self.root: Data = None
        self.open: list[_Open] = []
        self._documents = 0

    def refuse(self, message: str, line: int, hint: str = "") -> None:
        self.problems.append(Problem(message, f"{self.name}:{line}", hint))

    def take(self, event: yaml.Event) -> None:
        line = _line(event)
        for message, hint in _faults(event):
            self.refuse(message, line, hint)
        if isinstance(event, yaml.ScalarEvent) and (hidden := hidden_in(event.value, lines=True)):
            self.refuse(f"a text holds no {hidden!r}", line)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self.refuse("a second document begins here", line, "keep one, without a line of `---` after it")
        elif isinstance(event, yaml.ScalarEvent):
            if self._awaits_key():
                self._key(str(event.value), line)
            else:
                self._value(_scalar(event), line)
        elif isinstance(event, yaml.AliasEvent):
            self._value(None, line) if not self._awaits_key() else self._no_key(line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._begin({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.open.pop()

    def _awaits_key(self) -> bool:
        top = self.open[-1] if self.open else None
        return top is not None and isinstance(top.holder, dict) and top.key is None and not top.dropped

    def _key(self, key: str, line: int) -> None:
        top = self.open[-1]
        if isinstance(top.holder, dict) and key in top.holder:
            first = self.lines[(*top.path, key)]
            self.refuse(f"`{key}` is given twice", line, f"the first is on line {first}: keep one")
            top.dropped = True
        else:
            top.key, top.line = key, line

    def _no_key(self, line: int) -> None:
        self.refuse("a key must be text", line)
        self.open[-1].dropped = True

    def _begin(self, holder: dict[str, Data] | list[Data], line: int) -> None:
        if self._awaits_key():
            self._no_key(line)
            self.open.append(_Open(holder, ()))
        else:
            self.open.append(_Open(holder, self._value(holder, line)))

    def _value(self, value: Data, line: int) -> KeyPath:
        """Put a value where it belongs, and return its path."""
        if not self.open:
            self.root = value if self._documents == 1 else self.root
            self.lines.setdefault((), line)
            return ()
        top = self.open[-1]
        if isinstance(top.holder, list):
            path: KeyPath = (*top.path, len(top.holder))
            top.holder.append(value)
            self.lines.setdefault(path, line)
            return path
        if top.dropped or top.key is None:
            top.dropped = False
            return top.path
        path = (*top.path, top.key)
        top.holder[top.key] = value
        self.lines.setdefault(path, top.line)
        top.key = None
        return path


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _faults(event: yaml.Event) -> Iterator[tuple[str, str]]:
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        yield "anchors and aliases are not used here", "write the value where it is needed"
    elif isinstance(event, yaml.NodeEvent) and (tag := getattr(event, "tag", None)):
        yield f"the tag `{tag}` is not used here", "write a plain value"


def _scalar(event: yaml.ScalarEvent) -> Data:
    if event.style:  # quoted, or a block: text
        return str(event.value)
    return read_scalar(event.value) if event.value else None
