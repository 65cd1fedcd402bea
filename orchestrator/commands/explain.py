"""`deploy show --explain`: every value, who stands behind it, and the line it was written on."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from orchestrator.commands.planning import Loaded
from orchestrator.core.console import table
from orchestrator.core.document import Data, KeyPath

_WIDEST = 64  # characters of a value in the table


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One value of a composed profile."""

    key: str
    value: str
    origin: str  # empty for plain facts
    source: str
    place: str

    def to_dict(self) -> dict[str, str]:
        """As plain data."""
        return asdict(self)


def explained(loaded: Loaded) -> tuple[Explained, ...]:
    """Every value of the composed profile, in the order of the layers."""
    return tuple(_walk(loaded.composed.data, (), loaded))


def explained_table(rows: Sequence[Explained]) -> str:
    """The same for people."""
    cells = [(row.key, _short(row.value), row.origin, row.place, row.source) for row in rows]
    return table(("key", "value", "origin", "written at", "source"), cells)


def _walk(value: Data, path: KeyPath, loaded: Loaded) -> Iterator[Explained]:
    if isinstance(value, dict) and "value" not in value:
        for key, inner in value.items():
            if key != "source":  # it stands beside every fact of its file
                yield from _walk(inner, (*path, key), loaded)
        return
    setting = value if isinstance(value, dict) else {"source": _source_of_file(path, loaded)}
    yield Explained(
        key=".".join(str(step) for step in path),
        value=_text(setting.get("value", value)),
        origin=str(setting.get("origin", "user" if path[0] in {"flags", "env", "layout"} else "")),
        source="; ".join(str(setting[key]) for key in ("source", "note") if setting.get(key)),
        place=loaded.composed.place(path),
    )


def _source_of_file(path: KeyPath, loaded: Loaded) -> Data:
    """The source that a part's file names for all its facts."""
    part = loaded.composed.data[str(path[0])]
    return part.get("source") if isinstance(part, dict) else None


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else value[: _WIDEST - 1] + "…"


def _text(value: Data) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
