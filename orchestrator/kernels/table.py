"""The one table a server gets: measured rows, the image's own, upstream's, and re-keyed ones, without a duplicate."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.kernels.coverage import rank_shapes
from orchestrator.kernels.names import KernelNames, Verdict
from orchestrator.kernels.rows import Row, RowOrigin, merge, rekey
from orchestrator.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table's rows in their order, and what was left out."""

    rows: tuple[Row, ...]
    duplicates: int
    refused: tuple[Row, ...]  # rows not of the image whose kernels this aiter does not have, or not for this shape

    @property
    def origins(self) -> dict[RowOrigin, int]:
        """How many rows of each origin it holds."""
        return {origin: sum(row.origin is origin for row in self.rows) for origin in RowOrigin}


def assemble(plan: Plan, rows: Iterable[Row], *, names: KernelNames | None) -> Table:
    """The table for the plan's GPU, with rows re-keyed from the fused key to the unfused one where there are any.

    Rows that the image does not ship itself must name kernels of its aiter: one that does not ends the server with
    `Invalid FlyDSL kernel name`. Where `names` is None that cannot be known, and only the image's rows and those
    measured in it are taken.
    """
    given = list(rows)
    accepted = [row for row in given if _runs(row, names)]
    shapes = {fused: shape for shape, fused in rank_shapes(plan).items()}
    rekeyed: tuple[Row, ...] = ()
    if names and True in shapes:
        rekeyed = rekey(accepted, fused=shapes[True], unfused=shapes[False])
        rekeyed = tuple(row for row in rekeyed if _runs(row, names))
    merged = merge([*accepted, *rekeyed], gfx=plan.hardware.arch, cu_num=plan.hardware.compute_units)
    return Table(
        rows=merged.rows, duplicates=merged.dropped, refused=tuple(row for row in given if not _runs(row, names))
    )


def _runs(row: Row, names: KernelNames | None) -> bool:
    if row.origin is RowOrigin.IMAGE:
        return True
    if names is None:
        return row.origin is RowOrigin.MEASURED
    return names.judge_all(row.kernels, row.key.shape) is Verdict.KNOWN
