"""A server's table: measured, image, upstream and derived rows, without duplicates.

Every kernel name must exist in the image's aiter; otherwise the server exits with `Invalid FlyDSL kernel name`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.kernels.keys import Key, Shape, buckets, key_of, rank_shapes
from orchestrator.kernels.rows import RowOrigin, TunedRow, derive_unfused, merge
from orchestrator.plan.plan import Moe, Plan

_CHECKED = "flydsl"  # other families' names (CK, assembly) are generated from the row


class NameVerdict(StrEnum):
    """Whether a kernel exists at one aiter commit."""

    KNOWN = "known"
    UNKNOWN_KERNEL = "unknown kernel"
    NOT_BUILT = "not built"  # for this shape


@dataclass(frozen=True, kw_only=True)
class ShapeConstraint:
    """A family of kernels that exists only for some shapes; `prefix` is the prefix of its names."""

    prefix: str
    shapes: tuple[Shape, ...]
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelNames:
    """The FlyDSL names of one aiter commit, as patterns for complete names."""

    commit: str
    patterns: tuple[re.Pattern[str], ...]
    constraints: tuple[ShapeConstraint, ...]
    excluded_tokens: Mapping[int, tuple[int, ...]]  # by inter_dim; upstream's rows for them name other kernels

    def check(self, name: str, shape: Shape) -> NameVerdict:
        """Check whether this aiter has the kernel `name` for `shape`."""
        if not name.startswith(_CHECKED):
            return NameVerdict.KNOWN
        if not any(pattern.fullmatch(name) for pattern in self.patterns):
            return NameVerdict.UNKNOWN_KERNEL
        for family in self.constraints:
            if name.startswith(family.prefix) and shape not in family.shapes:
                return NameVerdict.NOT_BUILT
        return NameVerdict.KNOWN

    def check_all(self, names: tuple[str, ...], shape: Shape) -> NameVerdict:
        """Return the first verdict other than KNOWN, or KNOWN."""
        verdicts = (self.check(name, shape) for name in names)
        return next((verdict for verdict in verdicts if verdict is not NameVerdict.KNOWN), NameVerdict.KNOWN)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of a table in order, and the rejected rows."""

    rows: tuple[TunedRow, ...]
    rejected: tuple[TunedRow, ...]  # rows with kernels that the image's aiter lacks

    @property
    def origins(self) -> dict[RowOrigin, int]:
        """The number of rows by origin."""
        return {origin: sum(row.origin is origin for row in self.rows) for origin in RowOrigin}

    @property
    def summary(self) -> str:
        """The number of rows by origin and of rejected rows, in lines."""
        counts = [f"{count} {origin.value}" for origin, count in self.origins.items() if count]
        lines = [f"{len(self.rows)} rows: {', '.join(counts) or 'none'}"]
        if self.origins[RowOrigin.DERIVED]:
            lines.append("derived rows fit the shape; their times are unmeasured")
        if self.rejected:
            lines.append(f"{len(self.rejected)} rows left out: kernels missing in the image's aiter")
        return "\n".join(lines)


def assemble(plan: Plan, rows: Iterable[TunedRow], *, names: KernelNames | None) -> Table:
    """Build the table for the plan's GPU, with rows derived for the unfused shape from rows of the fused shape.

    `names` are the kernels of the image's aiter; None accepts only the image's rows and rows measured in it.
    """
    candidates = list(rows)
    accepted = [row for row in candidates if _is_usable(row, names)]
    shapes = {fused: shape for shape, fused in rank_shapes(plan).items()}
    derived: tuple[TunedRow, ...] = ()
    if names and True in shapes:
        derived = derive_unfused(accepted, fused=shapes[True], unfused=shapes[False])
        derived = tuple(row for row in derived if _is_usable(row, names))
    return Table(
        rows=merge([*accepted, *derived], gfx=plan.hardware.arch, cu_num=plan.hardware.compute_units),
        rejected=tuple(row for row in candidates if not _is_usable(row, names)),
    )


@dataclass(frozen=True, kw_only=True)
class UpstreamKeys:
    """The keys of the pinned upstream table: one model, several widths, every bucket up to `tokens`."""

    model_dim: int
    inter_dim: tuple[int, ...]
    expert: int
    topk: int
    tokens: int


def builtin_rows(plan: Plan, tokens_by_shape: Mapping[Shape, tuple[int, ...]], moe: Moe | None) -> tuple[TunedRow, ...]:
    """Return placeholder rows, without kernels, for aiter's own keys that the plan's server may look up."""
    return tuple(
        _placeholder(key_of(plan, shape, token=token), RowOrigin.IMAGE, "aiter's own tables")
        for shape in rank_shapes(plan, moe)
        for token in tokens_by_shape.get(shape, ())
    )


def expected_rows(
    plan: Plan, upstream: UpstreamKeys, names: KernelNames, moe: Moe | None = None
) -> tuple[TunedRow, ...]:
    """Return placeholder rows, without kernels, that `assemble` will take from the pinned upstream table.

    `moe` is the checkpoint's MoE, by default the plan's.
    """
    shapes = {fused: shape for shape, fused in rank_shapes(plan, moe).items()}
    fused = shapes.get(True)
    if fused is None or fused.inter_dim not in upstream.inter_dim:
        return ()
    if (fused.model_dim, fused.expert, fused.topk) != (upstream.model_dim, upstream.expert, upstream.topk):
        return ()
    excluded = names.excluded_tokens.get(fused.inter_dim, ())
    tokens = [token for token in buckets(upstream.tokens) if token not in excluded]
    origins = {fused: RowOrigin.UPSTREAM, shapes[False]: RowOrigin.DERIVED}
    return tuple(
        _placeholder(key_of(plan, shape, token=token), origin, "the pinned upstream table")
        for shape, origin in origins.items()
        for token in tokens
    )


def _placeholder(key: Key, origin: RowOrigin, location: str) -> TunedRow:
    """Return a row with only a key."""
    return TunedRow(
        key=key, act_type="", tag="", kernels=("", ""), us=math.inf, cells={}, origin=origin, location=location
    )


def _is_usable(row: TunedRow, names: KernelNames | None) -> bool:
    if row.origin is RowOrigin.IMAGE:
        return True
    if names is None:
        return row.origin is RowOrigin.MEASURED
    return names.check_all(row.kernels, row.key.shape) is NameVerdict.KNOWN
