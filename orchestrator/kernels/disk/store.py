"""Store of tables: measured rows by aiter commit, and the tables built from them.

::

    kernels/upstream/<commit>-<file>          the pinned upstream table, by checksum
    kernels/<aiter commit>/measured.csv       rows measured by aiter's tuner at that commit
    kernels/<aiter commit>/measured.origins.csv   host, image digest, commit and date of each row
    kernels/<aiter commit>/<model>-<gfx>-tp8.csv  the table of a server, by what determines its keys
    kernels/<aiter commit>/<model>-<gfx>-tp8.origins.csv  origin of each row
    kernels/<aiter commit>/tuning/<profile>/  the tuner's input, output and log
    kernels/image-<digest of its name>/       the same, for an image with an unpinned aiter
    kernels/image-<digest of its name>/shipped.csv  its own rows, read by `deploy add engine`
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.files import atomic_write_all
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName, RelativePath
from orchestrator.kernels.disk.files import companion, read_tables
from orchestrator.kernels.rows import RowOrigin, TunedRow, merge, write_origins, write_table
from orchestrator.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class RowProvenance:
    """Provenance of a measured row; `date` is ISO 8601, UTC."""

    host: str
    image: str  # digest, or the engine's id of a local image
    aiter_commit: str
    date: str

    def __str__(self) -> str:
        return f"host {self.host}, image {self.image}, aiter {self.aiter_commit}, {self.date}"


@dataclass(frozen=True)
class Store:
    """The store of one aiter commit."""

    folder: Path

    @classmethod
    def of(cls, home: Home, plan: Plan, aiter_commit: str | None = None) -> "Store":
        """Return the store for an aiter commit, by default the plan's."""
        return cls.at(home, aiter_commit or plan.engine.aiter_commit, plan.engine.image)

    @classmethod
    def at(cls, home: Home, aiter_commit: str | None, image: str | None) -> "Store":
        """Return the store for an aiter commit; without one, for the aiter of `image`."""
        image_folder = f"image-{hashlib.sha256((image or '').encode()).hexdigest()[:12]}"
        return cls(home.kernels / FileName(aiter_commit[:12] if aiter_commit else image_folder))

    def table(self, plan: Plan) -> Path:
        """Return the path of the table of a plan's server."""
        return self.table_of(plan.model.name, plan.hardware.arch, tp=plan.layout.tp, ep=plan.layout.ep)

    def table_of(self, model: str, arch: str, *, tp: int, ep: int) -> Path:
        """Return the path of the table for a model, a layout and a kind of GPU."""
        layout = f"tp{tp}" if ep == 1 else f"tp{tp}-ep{ep}"
        return self.folder / FileName(f"{model}-{arch}-{layout}.csv")

    def is_fresh(self, plan: Plan) -> bool:
        """Return whether a plan's table exists and is newer than the measured rows."""
        table, measured = self.table(plan), self._measured
        return table.is_file() and not (measured.is_file() and measured.stat().st_mtime > table.stat().st_mtime)

    def save_shipped(self, rows: Sequence[TunedRow]) -> Path:
        """Save the rows of an image's tables; return the path."""
        self._write(self._shipped, rows)
        return self._shipped

    def image_rows(self, *, keep: Callable[[TunedRow], bool] = lambda _: True) -> list[TunedRow] | None:
        """Return the image's own rows that pass `keep`; None if the image was not read yet."""
        path = self._shipped
        return read_tables([path], origin=RowOrigin.IMAGE, keep=keep) if path.is_file() else None

    @property
    def _shipped(self) -> Path:
        return self.folder / "shipped.csv"

    @property
    def _measured(self) -> Path:
        return self.folder / "measured.csv"

    def tuning(self, plan: Plan) -> Path:
        """Return the tuner's working directory for a plan's profile."""
        return self.folder / "tuning" / RelativePath(plan.profile)

    def measured_rows(self) -> list[TunedRow]:
        """Return the measured rows, each with its provenance as its location."""
        path = self._measured
        return read_tables([path], origin=RowOrigin.MEASURED) if path.is_file() else []

    def add(self, rows: Iterable[TunedRow], provenance: RowProvenance) -> None:
        """Save newly measured rows; of rows with equal keys, only the fastest."""
        new = [replace(row, origin=RowOrigin.MEASURED, location=str(provenance)) for row in rows]
        both = [*self.measured_rows(), *new]
        gpus = dict.fromkeys((row.key.gfx, row.key.cu_num) for row in both)
        merged = [row for gfx, cu_num in gpus for row in merge(both, gfx=gfx, cu_num=cu_num)]
        self._write(self._measured, merged)

    def write(self, plan: Plan, rows: Sequence[TunedRow]) -> Path:
        """Write the plan's table with its companion of origins, and return the table's path."""
        path = self.table(plan)
        self._write(path, rows)
        return path

    def _write(self, path: Path, rows: Sequence[TunedRow]) -> None:
        atomic_write_all([(companion(path), write_origins(rows), 0o644), (path, write_table(rows), 0o644)])
