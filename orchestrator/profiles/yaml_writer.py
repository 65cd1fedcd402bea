"""YAML output for files that the user continues to edit, in the form of the shipped files, with comments."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.yaml_document import Data, read_scalar

_PLAIN: Final = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+@-]*(?: [A-Za-z0-9_./+@()-]+)*")
_WIDTH: Final = 120


@dataclass(frozen=True, kw_only=True)
class YamlLine:
    """One key of a file by path, its value, and its comment."""

    path: tuple[str, ...]
    value: Data
    comment: str = ""


def yaml_text(head: Sequence[str], lines: Sequence[YamlLine]) -> str:
    """Return the text of a file: `head` as comments, then the lines, grouped by section."""
    return "\n".join([*(f"# {text}" for text in head), *_sections(lines)]) + "\n"


def _sections(lines: Sequence[YamlLine]) -> Iterator[str]:
    section = ""
    for line in sorted(lines, key=lambda item: _first(item, lines)):
        holder = ".".join(line.path[:-1])
        if holder and holder != section:
            yield f"{holder}:"
        section = holder
        comment = f"  # {line.comment}" if line.comment else ""
        begin, value = f"{'  ' if holder else ''}{_key(line.path[-1])}:", f"{flow(line.value)}{comment}"
        if len(begin) + len(value) < _WIDTH or not isinstance(line.value, dict):
            yield f"{begin} {value}"
        else:
            yield begin
            yield f"{'    ' if holder else '  '}{value}"


def _first(line: YamlLine, lines: Sequence[YamlLine]) -> int:
    """Return the index of the first line in the same section."""
    return next(at for at, item in enumerate(lines) if item.path[:1] == line.path[:1])


def _key(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def flow(value: Data) -> str:
    """Return a value on one line, in a form that `deploy`'s strict reader accepts."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and read_scalar(value) == value
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(inner) for inner in value) + "]"
    return json.dumps(value)
