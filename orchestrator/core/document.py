"""YAML, read strictly, with the place of every key kept.

PyYAML keeps the last of two equal keys and reads `no`, `012` and `22:30` as other types than they look. Here a
duplicate key is an error, and only `true`, `false`, `null`, decimal integers and decimal fractions are anything but
text. Anchors, aliases and tags are refused: a value stands where it is read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import yaml

from orchestrator.core.errors import Problem, ProfileError

Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
KeyPath: TypeAlias = tuple[str | int, ...]

_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9_]*)\Z")
_FRACTION: Final = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+\Z")
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}


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


def read_document(text: str, name: str) -> Document:
    """Read a mapping from YAML `text`; `name` is the file's name in messages.

    Raises ProfileError with every problem found: syntax, duplicate keys, anchors, tags, keys that are not text.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ProfileError(f"this is not YAML: {error.problem}", where=f"{name}{line}") from error
    except yaml.reader.ReaderError as error:
        raise ProfileError(f"this is not text: {error.reason}", where=name) from error
    if node is None:
        return Document(name, {}, {})
    problems = [Problem(message, f"{name}:{line}", hint) for message, line, hint in _faults(text)]
    reader = _Reader(name, problems)
    data = reader.value(node, ())
    if not isinstance(data, dict):
        problems.append(Problem("expected a mapping of keys to values", f"{name}:1"))
        data = {}
    if problems:
        raise ProfileError(f"`{name}` cannot be read", problems=problems)
    return Document(name, data, reader.lines)


def read_scalar(text: str) -> Data:
    """One value as it would be read in a file: `--set tp=4` means the number, `--set name=on` the word."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FRACTION.match(text) else text


def _faults(text: str) -> Iterator[tuple[str, int, str]]:
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield "anchors and aliases are not used here", line, "write the value where it is needed"
        elif tag := getattr(event, "tag", None):
            yield f"the tag `{tag}` is not used here", line, "write a plain value"


def _scalar(node: yaml.ScalarNode) -> Data:
    if node.style is not None:  # quoted, or a block: text
        return str(node.value)
    return read_scalar(node.value) if node.value else None


class _Reader:
    """Turns nodes into data and remembers where each key path was."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        self.name = name
        self.problems = problems
        self.lines: dict[KeyPath, int] = {}

    def value(self, node: yaml.Node, path: KeyPath) -> Data:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return None

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Data]:
        data: dict[str, Data] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem("a key must be text", f"{self.name}:{line}"))
                continue
            key = str(key_node.value)
            if key in data:
                first = self.lines[(*path, key)]
                self.problems.append(
                    Problem(
                        f"`{key}` stands here twice", f"{self.name}:{line}", f"the first is on line {first}: keep one"
                    )
                )
                continue
            self.lines[(*path, key)] = line
            data[key] = self.value(value_node, (*path, key))
        return data
