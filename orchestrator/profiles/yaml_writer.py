"""YAML output for files that the user continues to edit, in the form of the shipped files, with comments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.yaml_document import Data, dump_inline

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
        begin, value = f"{'  ' if holder else ''}{dump_inline(line.path[-1])}:", f"{dump_inline(line.value)}{comment}"
        if len(begin) + len(value) < _WIDTH or not isinstance(line.value, dict):
            yield f"{begin} {value}"
        else:
            yield begin
            yield f"{'    ' if holder else '  '}{value}"


def _first(line: YamlLine, lines: Sequence[YamlLine]) -> int:
    """Return the index of the first line in the same section."""
    return next(at for at, item in enumerate(lines) if item.path[:1] == line.path[:1])
