"""What the tool pins of others: aiter's newer table and kernel names (`aiter.yaml`), sglang's tuner (`triton.yaml`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.core.catalogue import Catalogue, Kind
from orchestrator.core.errors import KernelsError
from orchestrator.core.validation import StrictModel, read_model
from orchestrator.kernels.keys import Shape
from orchestrator.kernels.table import KernelNames, ShapeBound, UpstreamKeys


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
        """Where the file is downloaded from."""
        return self.url.format(commit=self.commit, path=self.path)


class _Keys(StrictModel):
    model_dim: int
    inter_dim: tuple[int, ...]
    expert: int
    topk: int
    tokens: int


class _Names(StrictModel):
    commits: tuple[str, ...]
    patterns: tuple[str, ...]
    without: Mapping[int, tuple[int, ...]] = {}


class _Dimensions(StrictModel):
    model_dim: int
    inter_dim: int
    expert: int
    topk: int


class _Bound(StrictModel):
    prefix: str
    source: str
    shapes: tuple[_Dimensions, ...]


class _Pins(StrictModel):
    upstream: PinnedFile
    upstream_keys: _Keys
    names: tuple[_Names, ...]
    shape_bound: tuple[_Bound, ...]


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What the file says."""

    upstream: PinnedFile
    upstream_keys: UpstreamKeys
    names: tuple[KernelNames, ...]

    def names_of(self, commit: str | None) -> KernelNames | None:
        """The kernel names of an aiter commit, given in full or in its first seven digits or more; None if unknown."""
        if commit is None or len(commit) < 7:
            return None
        return next((names for names in self.names if names.commit.startswith(commit)), None)


class _TunerPins(StrictModel):
    tuner: tuple[PinnedFile, ...]


def read_tuner_pins() -> tuple[PinnedFile, ...]:
    """The files of sglang's tuner for Triton. Raises KernelsError for a file of pins it cannot use."""
    catalogue = Catalogue.from_environment()
    path = catalogue.path(Kind.KERNELS, "triton")
    return read_model(path, _TunerPins, catalogue.shown(path), fault=KernelsError).tuner


def read_pins(catalogue: Catalogue | None = None) -> Pins:
    """The catalogue's file of pins. Raises KernelsError for a file it cannot use."""
    catalogue = catalogue or Catalogue.from_environment()
    path = catalogue.path(Kind.KERNELS, "aiter")
    raw = read_model(path, _Pins, catalogue.shown(path), fault=KernelsError)
    bound = tuple(
        ShapeBound(prefix=one.prefix, shapes=tuple(Shape(**shape.model_dump()) for shape in one.shapes))
        for one in raw.shape_bound
    )
    names = tuple(
        KernelNames(
            commit=commit,
            patterns=tuple(re.compile(pattern) for pattern in group.patterns),
            bound=bound,
            without=group.without,
        )
        for group in raw.names
        for commit in group.commits
    )
    keys = UpstreamKeys(**raw.upstream_keys.model_dump())
    return Pins(upstream=raw.upstream, upstream_keys=keys, names=names)
