"""Pins of upstream files: aiter's newer table and kernel names (`aiter.yaml`)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from pydantic import Field

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import KernelsError
from orchestrator.core.validation import StrictModel, read_model
from orchestrator.kernels.keys import Shape, buckets
from orchestrator.kernels.table import BuiltinKeys, KernelNames, ShapeConstraint, UpstreamKeys
from orchestrator.plan.plan import Plan


class PinnedFile(StrictModel):
    """A file of a public repository, pinned by commit and content."""

    commit: str
    path: str
    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.path).name

    @property
    def address(self) -> str:
        """The download URL."""
        return self.url.format(commit=self.commit, path=self.path)


class _Names(StrictModel):
    commits: tuple[str, ...]
    patterns: tuple[str, ...]
    exclude: Mapping[int, tuple[int, ...]] = {}


class _Constraint(StrictModel):
    prefix: str
    source: str
    shapes: tuple[Shape, ...]


class _BuiltinKeys(StrictModel):
    model_dim: int
    inter_dim: int
    expert: int
    topk: int
    first: int = Field(default=1, alias="from")
    to: int
    exclude: tuple[int, ...] = ()


class _Gpu(StrictModel):
    gfx: str
    cu_num: int
    keys: tuple[_BuiltinKeys, ...]


class _BlockFp8(StrictModel):
    commits: tuple[str, ...]
    gpus: tuple[_Gpu, ...]


class _Pins(StrictModel):
    upstream: PinnedFile
    upstream_keys: UpstreamKeys
    names: tuple[_Names, ...]
    shape_bound: tuple[_Constraint, ...]
    block_fp8: tuple[_BlockFp8, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pins:
    """The content of `aiter.yaml`."""

    upstream: PinnedFile
    upstream_keys: UpstreamKeys
    names: tuple[KernelNames, ...]
    block_fp8: Mapping[str, tuple[BuiltinKeys, ...]]  # by commit

    def builtin_keys(self, plan: Plan) -> tuple[BuiltinKeys, ...] | None:
        """Return the keys of the plan's aiter for block-scaled FP8 on its GPU; None if unknown."""
        commit, gpu = plan.engine.aiter_commit or "", (plan.hardware.arch, plan.hardware.compute_units)
        pinned = self.block_fp8.items() if len(commit) > 6 else ()
        builtin = next((keys for full, keys in pinned if full.startswith(commit)), ())
        return tuple(keys for keys in builtin if (keys.gfx, keys.cu_num) == gpu) or None

    def names_of(self, commit: str | None) -> KernelNames | None:
        """Return the kernel names of an aiter commit, abbreviated to at least seven digits; None if unknown."""
        if commit is None or len(commit) < 7:
            return None
        return next((names for names in self.names if names.commit.startswith(commit)), None)


def read_pins(catalog: Catalog | None = None) -> Pins:
    """Read the pins of aiter. Raises KernelsError if the file is invalid."""
    catalog = catalog or Catalog.from_environment()
    path = catalog.path(EntryKind.KERNELS, "aiter")
    raw = read_model(path, _Pins, catalog.shown(path), fault=KernelsError)
    constraints = tuple(ShapeConstraint(prefix=each.prefix, shapes=each.shapes) for each in raw.shape_bound)
    names = tuple(
        KernelNames(
            commit=commit,
            patterns=tuple(re.compile(pattern) for pattern in group.patterns),
            constraints=constraints,
            excluded_tokens=group.exclude,
        )
        for group in raw.names
        for commit in group.commits
    )
    block_fp8 = {commit: tuple(_builtin_keys(group)) for group in raw.block_fp8 for commit in group.commits}
    return Pins(upstream=raw.upstream, upstream_keys=raw.upstream_keys, names=names, block_fp8=block_fp8)


def _builtin_keys(group: _BlockFp8) -> Iterator[BuiltinKeys]:
    for gpu in group.gpus:
        tokens = {
            Shape(model_dim=key.model_dim, inter_dim=key.inter_dim, expert=key.expert, topk=key.topk): tuple(
                size for size in buckets(key.to) if size >= key.first and size not in key.exclude
            )
            for key in gpu.keys
        }
        yield BuiltinKeys(gfx=gpu.gfx, cu_num=gpu.cu_num, tokens=tokens)
