"""`profiles/kernels/aiter.yaml`: the pinned upstream table, and the kernel names of the aiter commits we know."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from orchestrator.core.document import read_document
from orchestrator.core.errors import KernelsError
from orchestrator.core.paths import data_root
from orchestrator.core.validation import StrictModel, faults_in
from orchestrator.kernels.keys import Shape
from orchestrator.kernels.table import KernelNames, ShapeBound


class PinnedTable(StrictModel):
    """A table in aiter's repository, pinned by commit and content."""

    commit: str
    path: str
    url: str
    sha256: str

    @property
    def address(self) -> str:
        """Where the file is downloaded from."""
        return self.url.format(commit=self.commit, path=self.path)


class _Names(StrictModel):
    commits: tuple[str, ...]
    patterns: tuple[str, ...]


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
    upstream: PinnedTable
    names: tuple[_Names, ...]
    shape_bound: tuple[_Bound, ...]


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What the file says."""

    upstream: PinnedTable
    names: tuple[KernelNames, ...]

    def names_of(self, commit: str | None) -> KernelNames | None:
        """The kernel names of an aiter commit, given in full or in its first seven digits or more; None if unknown."""
        if commit is None or len(commit) < 7:
            return None
        return next((names for names in self.names if names.commit.startswith(commit)), None)


def read_pins(root: Path | None = None) -> Pins:
    """The file that ships with the tool, or the one below `root`. Raises KernelsError for a file it cannot use."""
    path = (root or data_root()) / "profiles" / "kernels" / "aiter.yaml"
    document = read_document(path.read_text(encoding="utf-8"), path.name)
    try:
        raw = _Pins.model_validate(document.data)
    except ValidationError as error:
        raise KernelsError(f"`{path.name}` is malformed", problems=faults_in(error, document.place)) from error
    bound = tuple(
        ShapeBound(prefix=one.prefix, shapes=tuple(Shape(**shape.model_dump()) for shape in one.shapes))
        for one in raw.shape_bound
    )
    names = tuple(
        KernelNames(commit=commit, patterns=tuple(re.compile(pattern) for pattern in group.patterns), bound=bound)
        for group in raw.names
        for commit in group.commits
    )
    return Pins(upstream=raw.upstream, names=names)
