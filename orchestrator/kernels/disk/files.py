"""Reader of tables on disk, by the rules of `orchestrator.kernels.rows`."""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.core.errors import KernelsError, Problem, truncate_problems
from orchestrator.core.files import open_lines
from orchestrator.kernels.keys import KEY_COLUMNS
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows

_MAX_LINE_CHARS: Final = 1 << 16  # per row; aiter's rows have about 400


def read_tables(
    paths: Iterable[Path], *, origin: RowOrigin = RowOrigin.FILE, keep: Callable[[TunedRow], bool] = lambda _: True
) -> list[TunedRow]:
    """Read the rows of all tables that pass `keep`, in order. Raises KernelsError with every invalid row.

    The origin and location of a row come from the table's companion, if it contains the row. Rows are streamed: a row
    that does not pass `keep` takes no memory.
    """
    rows: list[TunedRow] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            origins = _origins(companion(path))
            lines = open_lines(path, max_characters=_MAX_LINE_CHARS)
            candidates = read_rows(lines, name=str(path), origin=origin, problems=problems)
            rows.extend(_with_origin(row, origins) for row in candidates if keep(row))
        except OSError as error:
            problems.append(Problem(f"cannot read the table: {error.strerror}", str(path)))
        except (KeyError, ValueError):
            hint = "remove it; the rows then have the origin `file`"
            problems.append(Problem("invalid origins of table rows", str(companion(path)), hint))
    require_readable(problems)
    return rows


def tables_below(configs: Path) -> tuple[Path, ...]:
    """Return the tables in `configs` that aiter reads without `AITER_CONFIG_FMOE`, the general table first.

    These are tuned_fmoe.csv and model_configs/*tuned_fmoe*.csv (aiter, jit/core.py).
    """
    paths = (path for path in configs.rglob("*tuned_fmoe*.csv") if "untuned" not in path.name)
    read = (path for path in paths if path.parent.name == "model_configs" or path.name == "tuned_fmoe.csv")
    return tuple(sorted(read, key=lambda path: (len(path.parts), path)))


def companion(table: Path) -> Path:
    """Return the path of a table's companion, with the origins of its rows."""
    return table.with_suffix(".origins.csv")


def _origins(path: Path) -> dict[tuple[str, ...], tuple[RowOrigin, str]]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {_cells(row): (RowOrigin(row["origin"]), row["location"]) for row in csv.DictReader(lines)}


def _with_origin(row: TunedRow, origins: Mapping[tuple[str, ...], tuple[RowOrigin, str]]) -> TunedRow:
    if not origins:
        return row
    identity = _cells({**row.key.cells(row.act_type), "_tag": row.tag})
    origin, location = origins.get(identity, (row.origin, row.location))
    return replace(row, origin=origin, location=location)


def _cells(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in (*KEY_COLUMNS, "_tag"))


def require_readable(problems: list[Problem]) -> None:
    """Raise KernelsError if there are problems."""
    if problems:
        raise KernelsError("cannot read the tuned tables", problems=truncate_problems(problems))
