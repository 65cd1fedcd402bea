"""The one table a server gets: measured rows, the image's own, upstream's, and re-keyed ones, without a duplicate.

A row has to name kernels that the aiter in the image has; one that does not ends in `Invalid FlyDSL kernel name`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.kernels.keys import Key, Shape, buckets, key_of, mxfp4_key, rank_shapes
from orchestrator.kernels.rows import RowOrigin, TunedRow, derive_unfused, merge
from orchestrator.plan.plan import Moe, Plan

_JUDGED = "flydsl"  # names of other families (CK, assembly) are generated from the row and are not judged


class NameVerdict(StrEnum):
    """What can be said of a kernel name at one aiter commit."""

    KNOWN = "known"
    UNKNOWN = "kernel unknown to this aiter"
    NOT_GENERATED = "kernel not generated for this shape"


@dataclass(frozen=True, kw_only=True)
class ShapeConstraint:
    """A family of kernels that exists for some shapes only; `prefix` is how its names begin."""

    prefix: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class KernelNames:
    """The FlyDSL names of one aiter commit, as patterns that match a whole name."""

    commit: str
    patterns: tuple[re.Pattern[str], ...]
    bound: tuple[ShapeConstraint, ...]
    without: Mapping[int, tuple[int, ...]]  # tokens, by inter_dim, whose upstream rows name kernels that it lacks

    def judge(self, name: str, shape: Shape) -> NameVerdict:
        """What this aiter makes of `name` for `shape`."""
        if not name.startswith(_JUDGED):
            return NameVerdict.KNOWN
        if not any(pattern.fullmatch(name) for pattern in self.patterns):
            return NameVerdict.UNKNOWN
        for family in self.bound:
            if name.startswith(family.prefix) and shape not in family.shapes:
                return NameVerdict.NOT_GENERATED
        return NameVerdict.KNOWN

    def judge_all(self, names: tuple[str, ...], shape: Shape) -> NameVerdict:
        """The verdict on the first of `names` that is not known, or KNOWN."""
        verdicts = (self.judge(name, shape) for name in names)
        return next((verdict for verdict in verdicts if verdict is not NameVerdict.KNOWN), NameVerdict.KNOWN)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table's rows in their order, and what was left out."""

    rows: tuple[TunedRow, ...]
    duplicates: int
    refused: tuple[TunedRow, ...]  # rows not of the image whose kernels this aiter does not have, or not for this shape

    @property
    def origins(self) -> dict[RowOrigin, int]:
        """How many rows of each origin it holds."""
        return {origin: sum(row.origin is origin for row in self.rows) for origin in RowOrigin}

    @property
    def summary(self) -> str:
        """What it holds by origin, and what was left out, in lines."""
        counts = [f"{count} {origin.value}" for origin, count in self.origins.items() if count]
        lines = [f"{len(self.rows)} rows: {', '.join(counts) or 'none'}"]
        if self.origins[RowOrigin.REKEYED]:
            lines.append("re-keyed rows fit the shape and are unmeasured in speed: nobody timed them under this key")
        if self.duplicates:
            lines.append(f"{self.duplicates} rows left out: another row has their key")
        if self.refused:
            lines.append(f"{len(self.refused)} rows left out: their kernels do not exist in the image's aiter")
        return "\n".join(lines)


def assemble(plan: Plan, rows: Iterable[TunedRow], *, names: KernelNames | None) -> Table:
    """The table for the plan's GPU, with rows re-keyed from the fused key to the unfused one where there are any.

    Rows that the image does not ship itself must name kernels of its aiter: one that does not ends the server with
    `Invalid FlyDSL kernel name`. Where `names` is None that cannot be known, and only the image's rows and those
    measured in it are taken.
    """
    given = list(rows)
    accepted = [row for row in given if _runs(row, names)]
    shapes = {fused: shape for shape, fused in rank_shapes(plan).items()}
    rekeyed: tuple[TunedRow, ...] = ()
    if names and True in shapes:
        rekeyed = derive_unfused(accepted, fused=shapes[True], unfused=shapes[False])
        rekeyed = tuple(row for row in rekeyed if _runs(row, names))
    merged = merge([*accepted, *rekeyed], gfx=plan.hardware.arch, cu_num=plan.hardware.compute_units)
    return Table(
        rows=merged.rows, duplicates=merged.dropped, refused=tuple(row for row in given if not _runs(row, names))
    )


@dataclass(frozen=True, kw_only=True)
class UpstreamKeys:
    """The keys that the pinned upstream table answers: one model, several widths, every bucket up to `tokens`."""

    model_dim: int
    inter_dim: tuple[int, ...]
    expert: int
    topk: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class BuiltinKeys:
    """What the tables that come with an aiter answer on one kind of GPU: tokens by shape."""

    gfx: str
    cu_num: int
    tokens: Mapping[Shape, tuple[int, ...]]


def own_rows(plan: Plan, own: Iterable[BuiltinKeys], moe: Moe | None = None) -> tuple[TunedRow, ...]:
    """The rows of the aiter's own tables that the plan's server may look up, known without them; without kernels."""
    wanted = rank_shapes(plan, moe)
    return tuple(
        _row_of(key_of(plan, shape, token=token), RowOrigin.IMAGE, "aiter's own tables")
        for keys in own
        for shape in wanted
        for token in keys.tokens.get(shape, ())
    )


def expected_rows(
    plan: Plan, upstream: UpstreamKeys, names: KernelNames, moe: Moe | None = None
) -> tuple[TunedRow, ...]:
    """What `assemble` will take from the pinned upstream table, known before it is downloaded; rows without kernels.

    `moe` is the checkpoint's own shape, by default the plan's.
    """
    shapes = {fused: shape for shape, fused in rank_shapes(plan, moe).items()}
    fused = shapes.get(True)
    if fused is None or fused.inter_dim not in upstream.inter_dim:
        return ()
    if (fused.model_dim, fused.expert, fused.topk) != (upstream.model_dim, upstream.expert, upstream.topk):
        return ()
    without = names.without.get(fused.inter_dim, ())
    tokens = [token for token in buckets(upstream.tokens) if token not in without]
    origins = {fused: RowOrigin.UPSTREAM, shapes[False]: RowOrigin.REKEYED}
    return tuple(_promised(plan, shape, token, origin) for shape, origin in origins.items() for token in tokens)


def _promised(plan: Plan, shape: Shape, token: int, origin: RowOrigin) -> TunedRow:
    gpu = plan.hardware
    key = mxfp4_key(shape, gfx=gpu.arch, cu_num=gpu.compute_units, token=token)
    return _row_of(key, origin, "the pinned upstream table")


def _row_of(key: Key, origin: RowOrigin, where: str) -> TunedRow:
    """A row of which the key is known, and no more."""
    return TunedRow(key=key, act_type="", tag="", kernels=("", ""), us=math.inf, cells={}, origin=origin, where=where)


def _runs(row: TunedRow, names: KernelNames | None) -> bool:
    if row.origin is RowOrigin.IMAGE:
        return True
    if names is None:
        return row.origin is RowOrigin.MEASURED
    return names.judge_all(row.kernels, row.key.shape) is NameVerdict.KNOWN
