"""`deploy show --explain`: every value, its origin, the line it was written on, and the meaning of each flag."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.core.console import table
from orchestrator.core.origin import Origin
from orchestrator.core.yaml_document import Data, KeyPath
from orchestrator.planner.planning import ResolvedProfile
from orchestrator.profiles.layers import PARTS, is_setting

_QUESTIONS = ("model", "questions")
_WIDEST = 64  # maximum width of a value in the table, in characters
_PARAGRAPH = 100  # maximum columns of a paragraph


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One value of a merged profile."""

    key: str
    value: str
    origin: str  # empty for facts, which have none
    source: str
    location: str
    help: str = ""  # meaning of a flag, from the engine's parser


def explained(loaded: ResolvedProfile) -> tuple[Explained, ...]:
    """Return every value of the merged profile, in the order of the layers."""
    return tuple(_walk(loaded.composed.data, (), loaded))


def explained_table(rows: Sequence[Explained], *, width: int | None = None) -> str:
    """Format the values as a table, or as paragraphs if the table is wider than `width` columns.

    Flags come last, each as a paragraph with its meaning.
    """
    plain, flags = [row for row in rows if not row.help], [row for row in rows if row.help]
    cells = [(row.key, _short(row.value), row.origin, row.location, row.source) for row in plain]
    text = table(("key", "value", "origin", "written at", "source"), cells)
    if width is not None and max(map(len, text.splitlines())) > width:
        text = "\n".join(line for row in plain for line in _paragraph(row, width))
    if not flags:
        return text
    meanings = (line for row in flags for line in _paragraph(row, min(width or _PARAGRAPH, _PARAGRAPH)))
    return "\n".join([text, "", "flags, with the help text of the engine's parser:", *meanings])


def _paragraph(row: Explained, width: int) -> Iterator[str]:
    """Yield the value, then its location, origin and source, then the meaning of a flag."""
    behind = "; ".join(filter(None, [row.origin, row.source]))
    about = f"{row.location}: {behind}" if behind else row.location
    for text, indent in ((f"{row.key} = {row.value}", ""), (about, "    "), (row.help, "    ")):
        yield from textwrap.wrap(text, width, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False)


def _walk(value: Data, path: KeyPath, loaded: ResolvedProfile) -> Iterator[Explained]:
    if isinstance(value, dict) and not is_setting(path):
        for key, inner in value.items():
            if (*path, key) not in {(part, "source") for part in PARTS}:  # shown with every value of its file
                yield from _walk(inner, (*path, key), loaded)
        return
    if path == _QUESTIONS and isinstance(value, list):
        yield from (_question(item, (*path, index), loaded) for index, item in enumerate(value))
        return
    if is_setting(path):
        setting = value if isinstance(value, dict) else {"value": value, "origin": Origin.USER.value}
    else:
        setting = {"value": value, **_source_of_fact(path, loaded)}
    yield Explained(
        key=".".join(str(step) for step in path),
        value=_text(setting.get("value")),
        origin=str(setting.get("origin", "")),
        source="; ".join(str(setting[key]) for key in ("source", "note") if setting.get(key)),
        location=loaded.composed.location(path),
        help=loaded.valid.table.help_of(str(path[1])) if path[0] == "flags" and len(path) > 1 else "",
    )


def _question(value: Data, path: KeyPath, loaded: ResolvedProfile) -> Explained:
    question = value if isinstance(value, dict) else {}
    return Explained(
        key=".".join(str(step) for step in path),
        value=f"{question.get('expected')} ← {question.get('prompt')}",
        origin=str(question.get("origin", Origin.USER.value)),
        source=str(question.get("source", "")),
        location=loaded.composed.location(path),
    )


def _source_of_fact(path: KeyPath, loaded: ResolvedProfile) -> dict[str, Data]:
    """Return the origin and source of a value: the command line, an override, or the `source` of its catalog entry."""
    if loaded.composed.from_command_line(path):
        return {"origin": Origin.USER.value, "source": loaded.composed.location(path)}
    if (source := loaded.composed.overridden.get(path)) is not None:
        return {"origin": "" if source else Origin.USER.value, "source": source}
    part = loaded.composed.data[str(path[0])]
    return {"source": part.get("source")} if path[0] in PARTS and isinstance(part, dict) else {}


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else value[: _WIDEST - 1] + "…"


def _text(value: Data) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
