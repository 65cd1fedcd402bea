"""`deploy show --explain`: every value with its origin and location, and the meaning of each flag."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.core.origin import Origin
from orchestrator.core.yaml_document import Data, KeyPath
from orchestrator.planner.planning import LoadedProfile
from orchestrator.profiles.layers import ENTRY_KEYS, is_setting

_PARAGRAPH = 100  # maximum columns of a paragraph


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One value of a merged profile."""

    key: str
    value: str
    origin: str  # empty for facts
    source: str
    location: str
    help: str = ""  # meaning of a flag, from the engine's parser


def explained(loaded: LoadedProfile) -> tuple[Explained, ...]:
    """Return every value of the merged profile, in layer order."""
    return tuple(_walk(loaded.composed.data, (), loaded))


def explained_text(rows: Sequence[Explained], *, width: int | None = None) -> str:
    """Format the values as paragraphs, wrapped at `width` columns (at most 100)."""
    return "\n".join(line for row in rows for line in _paragraph(row, min(width or _PARAGRAPH, _PARAGRAPH)))


def _paragraph(row: Explained, width: int) -> Iterator[str]:
    """Yield the lines of a value: the value, its location, origin and source, and the meaning of a flag."""
    suffix = "; ".join(filter(None, [row.origin, row.source]))
    origin = f"{row.location}: {suffix}" if suffix else row.location
    for text, indent in ((f"{row.key} = {row.value}", ""), (origin, "    "), (row.help, "    ")):
        yield from textwrap.wrap(text, width, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False)


def _walk(value: Data, path: KeyPath, loaded: LoadedProfile) -> Iterator[Explained]:
    if isinstance(value, dict) and not is_setting(path):
        for key, inner in value.items():
            # The source of a file is shown with every value of the file.
            if (*path, key) not in {(entry_key, "source") for entry_key in ENTRY_KEYS}:
                yield from _walk(inner, (*path, key), loaded)
        return
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):  # questions
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index), loaded)
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
        help=loaded.table.help_of(str(path[-1])) if path[-2:-1] == ("flags",) else "",
    )


def _source_of_fact(path: KeyPath, loaded: LoadedProfile) -> dict[str, Data]:
    """Return the origin and source of a value: the command line, an override, or the `source` of its catalog entry."""
    if loaded.composed.from_command_line(path):
        return {"origin": Origin.USER.value, "source": loaded.composed.location(path)}
    composed, entry = loaded.composed, loaded.composed.data[str(path[0])]
    if path[0] not in ENTRY_KEYS or not isinstance(entry, dict):
        return {}
    file = composed.files.get(str(path[0]))
    if file is not None and composed.location(path).rpartition(":")[0] != file:  # a profile overrides the entry
        return {"origin": Origin.USER.value}
    return {"source": entry.get("source")}


def _text(value: Data) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
