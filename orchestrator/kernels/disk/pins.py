"""Pins of upstream files: aiter's newer table and kernel names (`aiter.yaml`)."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from pydantic import Field

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.validation import StrictModel, read_entry
from orchestrator.kernels.keys import Shape, buckets
from orchestrator.kernels.table import KernelNames, ShapeConstraint, UpstreamKeys
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


class _BuiltinKeys(StrictModel):
    model_dim: int
    inter_dim: int
    expert: int
    topk: int
    first: int = Field(default=1, alias="from")
    to: int
    exclude: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        return Shape(model_dim=self.model_dim, inter_dim=self.inter_dim, expert=self.expert, topk=self.topk)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(size for size in buckets(self.to) if size >= self.first and size not in self.exclude)


class _Gpu(StrictModel):
    gfx: str
    cu_num: int
    keys: tuple[_BuiltinKeys, ...]


class _BlockFp8(StrictModel):
    commits: tuple[str, ...]
    gpus: tuple[_Gpu, ...]


class Pins(StrictModel):
    """The content of `aiter.yaml`. Commits may be abbreviated to at least seven digits."""

    upstream: PinnedFile
    upstream_keys: UpstreamKeys
    names: tuple[_Names, ...]
    shape_bound: tuple[ShapeConstraint, ...]
    block_fp8: tuple[_BlockFp8, ...] = ()

    def builtin_tokens(self, plan: Plan) -> Mapping[Shape, tuple[int, ...]] | None:
        """Return the tokens by shape in the block-scaled FP8 tables for the plan's aiter and GPU; None if unknown."""
        gpu = (plan.hardware.arch, plan.hardware.compute_units)
        groups = (group for group in self.block_fp8 if _commit_in(group.commits, plan.engine.aiter_commit))
        gpu_pins = next((item for group in groups for item in group.gpus if (item.gfx, item.cu_num) == gpu), None)
        tokens: dict[Shape, tuple[int, ...]] = {}
        for keys in gpu_pins.keys if gpu_pins else ():
            tokens[keys.shape] = (*tokens.get(keys.shape, ()), *keys.tokens)
        return tokens if gpu_pins else None

    def names_of(self, commit: str | None) -> KernelNames | None:
        """Return the kernel names of an aiter commit; None if unknown."""
        for group in self.names:
            if full := _commit_in(group.commits, commit):
                patterns, constraints = tuple(map(re.compile, group.patterns)), self.shape_bound
                return KernelNames(
                    commit=full, patterns=patterns, constraints=constraints, excluded_tokens=group.exclude
                )
        return None


def _commit_in(commits: Iterable[str], commit: str | None) -> str | None:
    """Return the full commit for an abbreviated one."""
    candidates = commits if commit and len(commit) > 6 else ()
    return next((full for full in candidates if full.startswith(commit or "")), None)


def read_pins(catalog: Catalog | None = None) -> Pins:
    """Read the pins of aiter. Raises ProfileError if the file is invalid."""
    return read_entry(catalog or Catalog.from_environment(), EntryKind.KERNELS, "aiter", Pins)
