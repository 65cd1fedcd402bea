"""Tables on disk: read strictly or leniently, as `orchestrator.kernels.rows` says."""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.core.errors import KernelsError, Problem
from orchestrator.core.files import open_lines
from orchestrator.kernels.keys import KEY_COLUMNS
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows

_LONGEST: Final = 1 << 16  # characters of a row; one of aiter's has some 400


def read_tables(
    paths: Iterable[Path], *, origin: RowOrigin = RowOrigin.FILE, keep: Callable[[TunedRow], bool] = lambda _: True
) -> list[TunedRow]:
    """The rows of all tables that `keep` wants, in order. Raises KernelsError with every fault at its file:line.

    A row that the table's companion knows keeps the origin and the place written there. Streams: what `keep` refuses
    takes no memory.
    """
    rows: list[TunedRow] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            known = _origins(companion(path))
            lines = open_lines(path, longest=_LONGEST)
            found = read_rows(lines, name=str(path), origin=origin, problems=problems)
            rows.extend(_with_origin(row, known) for row in found if keep(row))
        except OSError as error:
            problems.append(Problem(f"cannot be read: {error.strerror}", str(path)))
        except (KeyError, ValueError):
            hint = "remove it, and the rows count as those of a file you named"
            problems.append(Problem("does not say where the rows beside it come from", str(companion(path)), hint))
    refuse(problems)
    return rows


def companion(table: Path) -> Path:
    """The file beside a table that says where its rows come from."""
    return table.with_suffix(".origins.csv")


def _origins(path: Path) -> dict[tuple[str, ...], tuple[RowOrigin, str]]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {_cells(row): (RowOrigin(row["origin"]), row["where"]) for row in csv.DictReader(lines)}


def _with_origin(row: TunedRow, known: Mapping[tuple[str, ...], tuple[RowOrigin, str]]) -> TunedRow:
    if not known:
        return row
    identity = _cells({**row.key.cells(row.act_type), "_tag": row.tag})
    origin, where = known.get(identity, (row.origin, row.where))
    return replace(row, origin=origin, where=where)


def _cells(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in (*KEY_COLUMNS, "_tag"))


def refuse(problems: list[Problem]) -> None:
    """Raise KernelsError where there are problems."""
    if problems:
        raise KernelsError(
            "a tuned table cannot be used as it is"
            if len(problems) == 1
            else "tuned tables cannot be used as they are",
            problems=problems,
        )
