"""Rows of tuned tables: read as in aiter and pandas, merged without duplicates, derived for other shapes.

Accepted deviations of upstream's files: the last field (`_tag`) may be missing, `gfx` may be missing or empty and then
follows from `cu_num`, numbers may be written as `256.0`, truth values as `True`. Lines may end in CRLF. Every other
deviation is an error with its file and line.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.kernels.keys import KEY_COLUMNS, UNTUNED_COLUMNS, Key, Shape

_GFX_OF_COMPUTE_UNITS: Final = {256: "gfx950", 80: "gfx942", 304: "gfx942"}  # aiter/jit/utils/chip_info.py
_NA: Final = frozenset({"", "nan", "NaN", "None", "NULL", "null", "NA", "N/A"})  # read by pandas as NaN, or printed
_TRUTH: Final = {"1": True, "1.0": True, "True": True, "0": False, "0.0": False, "False": False}
_FALLBACK: Final = "flydsl_fallback"  # aiter/fused_moe.py, `get_cfg_2stages`
_REQUIRED: Final = (*KEY_COLUMNS[1:], "block_m", "kernelName1", "kernelName2")
# Read at every lookup; an empty cell is NaN, which is true for `run_1stage` and crashes `xbf16` and `flat`.
_ZERO_IF_EMPTY: Final = frozenset({"ksplit", "run_1stage", "xbf16", "flat"})
_MEASURED: Final = ("us1", "err1", "us2", "err2", "us", "tflops", "bw")
TABLE_COLUMNS: Final = (
    *KEY_COLUMNS,
    *("block_m", "ksplit", "us1", "kernelName1", "err1", "us2", "kernelName2", "err2", "us"),
    *("run_1stage", "xbf16", "flat", "tflops", "bw", "_tag"),
)


class RowOrigin(StrEnum):
    """Origin of a row, most preferred first among rows of equal key."""

    MEASURED = "measured"  # by aiter's tuner, run by `deploy`
    IMAGE = "image"
    UPSTREAM = "upstream"
    DERIVED = "derived"  # from a row of another shape; unmeasured time
    FILE = "file"  # a table named by the user


_PREFERENCE: Final = {origin: rank for rank, origin in enumerate(RowOrigin)}


@dataclass(frozen=True, kw_only=True)
class TunedRow:
    """One row. `us` is its time in microseconds, infinite if unmeasured; `location` is `file:line`."""

    key: Key
    act_type: str
    tag: str
    kernels: tuple[str, str]
    us: float
    cells: Mapping[str, str]
    origin: RowOrigin
    location: str

    @property
    def identity(self) -> tuple[Key, str, str]:
        """The unique key of a row in a table: aiter's merge key (`update_config_files`)."""
        return self.key, self.act_type, self.tag

    @property
    def looked_up(self) -> bool:
        """Whether aiter uses the row for its key; all tags except the fallback's are labels (c16d44b9)."""
        return self.tag != _FALLBACK


class _BadCellError(ValueError):
    """An invalid cell."""


def read_rows(lines: Iterable[str], *, name: str, origin: RowOrigin, problems: list[Problem]) -> Iterator[TunedRow]:
    """Yield the rows of a CSV table, one at a time; skip invalid rows and append them to `problems`."""
    reader = csv.reader(lines)
    try:
        header = [cell.strip().removeprefix("\ufeff") for cell in next(reader, [])]
        if header_problems := _check_header(header, name):
            problems.extend(header_problems)
            return
        for fields in reader:
            if not fields:
                continue
            try:
                yield _row(
                    dict(zip(header, _pad_fields(fields, header), strict=True)), f"{name}:{reader.line_num}", origin
                )
            except _BadCellError as error:
                problems.append(Problem(str(error), f"{name}:{reader.line_num}"))
    except csv.Error as error:
        problems.append(Problem(f"not a CSV table: {error}", f"{name}:{reader.line_num}"))


def _check_header(header: Sequence[str], name: str) -> list[Problem]:
    duplicates = sorted({column for column in header if header.count(column) > 1})
    problems = [Problem(f"duplicate column `{column}`", f"{name}:1") for column in duplicates]
    if missing := [f"`{column}`" for column in _REQUIRED if column not in header]:
        hint = "expected a tuned fused-MoE table, as aiter's gemm_moe_tune.py writes it"
        problems.append(Problem(f"missing columns: {', '.join(missing)}", f"{name}:1", hint))
    return problems


def _pad_fields(fields: list[str], header: Sequence[str]) -> list[str]:
    if len(fields) == len(header) - 1 and header[-1] == "_tag":
        return [*fields, ""]
    if len(fields) != len(header):
        raise _BadCellError(f"{len(fields)} fields, the header has {len(header)}")
    return fields


def _row(cells: dict[str, str], location: str, origin: RowOrigin) -> TunedRow:
    gfx = cells.get("gfx", "")
    if gfx in _NA or gfx == "0":
        gfx = _GFX_OF_COMPUTE_UNITS.get(_integer(cells, "cu_num"), "")
    key = Key.read(
        gfx, number=partial(_integer, cells), text=partial(_nonempty, cells), switch=partial(_boolean, cells)
    )
    tag = cells.get("_tag", "")
    if origin is RowOrigin.FILE and cells.get("us") == "":  # a derived row from `write_table`
        origin = RowOrigin.DERIVED
    return TunedRow(
        key=key,
        act_type=_nonempty(cells, "act_type"),
        tag="" if tag in _NA else tag,
        kernels=(_kernel(cells["kernelName1"]), _kernel(cells["kernelName2"])),
        us=_microseconds(cells.get("us", "")),
        cells=cells,
        origin=origin,
        location=location,
    )


def _integer(cells: Mapping[str, str], column: str) -> int:
    text = cells[column].strip()
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdigit()):
        raise _BadCellError(f"`{column}` is `{text}`, not a whole number")
    return int(digits)


def _nonempty(cells: Mapping[str, str], column: str) -> str:
    text = cells[column].strip()
    if text in _NA:
        raise _BadCellError(f"`{column}` is empty")
    return text


def _boolean(cells: Mapping[str, str], column: str) -> bool:
    text = cells[column].strip()
    if text not in _TRUTH:
        raise _BadCellError(f"`{column}` is `{text}`, neither 0 nor 1")
    return _TRUTH[text]


def _kernel(text: str) -> str:
    return "" if text in _NA else text


def _microseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return value if value > 0 else math.inf


def merge(rows: Iterable[TunedRow], *, gfx: str, cu_num: int) -> tuple[TunedRow, ...]:
    """Merge rows into a table for one kind of GPU, without duplicate keys, preferred origins first.

    Among rows of one origin the fastest counts, as in aiter's merge. Rows for other GPUs are skipped: an aiter before
    ad73ecb5 ignores `gfx`, and gfx1250 has 256 compute units too.
    """
    best: dict[tuple[Key, str, str], TunedRow] = {}
    for row in rows:
        if (row.key.gfx, row.key.cu_num) == (gfx, cu_num):
            current = best.setdefault(row.identity, row)
            if _rank(row) < _rank(current):
                best[row.identity] = row
    return tuple(sorted(best.values(), key=lambda row: _PREFERENCE[row.origin]))


def _rank(row: TunedRow) -> tuple[int, float]:
    return _PREFERENCE[row.origin], row.us


def derive_unfused(rows: Iterable[TunedRow], *, fused: Shape, unfused: Shape) -> tuple[TunedRow, ...]:
    """Derive rows of the unfused shape from rows of the fused shape, e.g. 257/9 → 256/8, without times and errors.

    Valid only for FlyDSL's two-stage kernels: their per-expert GEMM does not depend on the number of experts (aiter
    commit 31eb2c8f does the same for DeepSeek). `flydsl_mxmoe_*` is generated for one shape.
    """
    return tuple(
        _with_shape(row, unfused) for row in rows if row.key.shape == fused and row.looked_up and _portable(row)
    )


def _portable(row: TunedRow) -> bool:
    first, second = row.kernels
    return (
        first.startswith("flydsl_moe1_")
        and second.startswith("flydsl_moe2_")
        and not second.startswith("flydsl_moe2_layout_")
    )


def _with_shape(row: TunedRow, shape: Shape) -> TunedRow:
    key = replace(row.key, shape=shape)
    blank = {column: "" for column in _MEASURED if column in row.cells}
    cells = {**row.cells, **key.cells(row.act_type), **blank}
    return replace(row, key=key, cells=cells, us=math.inf, origin=RowOrigin.DERIVED)


def write_table(rows: Sequence[TunedRow]) -> str:
    """Format the rows as a table for aiter; fill every column that aiter reads."""
    extra = sorted({column for row in rows for column in row.cells} - set(TABLE_COLUMNS))
    columns = (*TABLE_COLUMNS[:-1], *extra, "_tag")
    return _csv(columns, ([_cell(row, column) for column in columns] for row in rows))


def _cell(row: TunedRow, column: str) -> str:
    if column == "gfx":
        return row.key.gfx
    if column == "_tag":
        return row.tag
    text = row.cells.get(column, "")
    return "0" if column in _ZERO_IF_EMPTY and text in _NA else text


def write_origins(rows: Sequence[TunedRow]) -> str:
    """Format the companion of a table: the key, the origin and the location of each row, in the table's order.

    It is a separate file because aiter and its tuner (which aligns columns) reject additional columns.
    """
    columns = ("line", *KEY_COLUMNS, "_tag", "origin", "location")
    return _csv(
        columns,
        (
            [str(line), *row.key.cells(row.act_type).values(), row.tag, row.origin, row.location]
            for line, row in enumerate(rows, start=2)
        ),
    )


def write_untuned(keys: Iterable[Key]) -> str:
    """Format the keys as input for the tuner, sorted and without duplicates."""
    return _csv(UNTUNED_COLUMNS, ([key.cells()[column] for column in UNTUNED_COLUMNS] for key in sorted(set(keys))))


def _csv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
