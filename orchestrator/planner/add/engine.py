"""`deploy add engine`: a catalog entry for an engine, from a release of sglang or an image.

The flag table comes from the engine's own parser, the state of each patch from its sources. An image also provides its
platform, its aiter and its tables of tuned kernels. An error for a missing value names its key.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import BuildError, KernelsError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.core.yaml_document import Data
from orchestrator.engine.flags import parse_flags
from orchestrator.images.patch_check import CONFLICT, PatchState, SourceChecker
from orchestrator.kernels.disk.image import ImageTables
from orchestrator.kernels.disk.store import Store
from orchestrator.planner.add.engine_sources import EngineRequest, EngineSource, engine_source
from orchestrator.planner.add.file import EntryOutput, entry_lines, free_name, require_complete, write_entry
from orchestrator.planner.flag_tables import flag_table, table_path
from orchestrator.profiles.layers import Override
from orchestrator.profiles.schema import EngineFile
from orchestrator.profiles.yaml_writer import YamlLine
from orchestrator.render.dockerfile import repository

_TABLE: Final = "options"
_RUNS_IN: Final = ("image", "requirements", "python")


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """The flag table of the engine's version: size and path. `made`: whether this call created it."""

    count: int
    path: str
    made: bool


@dataclass(frozen=True, kw_only=True)
class ShippedTables:
    """The tables of tuned MoE kernels in an image: files, rows and their GPUs."""

    files: int
    rows: int
    gpus: tuple[str, ...]
    path: str


@dataclass(frozen=True, kw_only=True)
class AddedEngine:
    """A new engine entry, with its flags, patches and tables."""

    file: EntryOutput
    options: OptionTable
    patches: tuple[PatchState, ...]
    tables: ShippedTables | None

    def rows(self) -> Iterator[list[str]]:
        """Yield key, value and source of each fact, as table rows."""
        yield from self.file.rows()
        origin = "from its parser" if self.options.made else "already known"
        yield [_TABLE, f"{self.options.count:,}", f"{origin}: {self.options.path}"]
        if self.tables is not None:
            gpus = ", ".join(self.tables.gpus)
            files = f"{self.tables.files} file{'s' if self.tables.files != 1 else ''}"
            yield ["tuned kernels", f"{self.tables.rows:,}", f"rows of {files} for {gpus}"]
        for patch in self.patches:
            yield [f"patch {patch.id}", patch.state, "\n".join(patch.evidence).partition("\n")[0]]


def add_engine(request: EngineRequest, home: Home) -> AddedEngine:
    """Write an engine's catalog entry, its flag table unless one exists, and the rows of its tuned kernels.

    Raises UsageError for a used or invalid name and for a file that is not a wheel; BuildError if the image is missing
    or has no sglang, or if the parser fails; ProfileError with every missing fact and the option that sets it. Writes
    nothing on an error, or with `dry_run`.
    """
    overrides = [Override.parse(text) for text in request.overrides]
    source = engine_source(request, home)
    keys = {".".join(item.path) for item in overrides}
    read = {line.path: line for line in source.lines()}
    lines = _with_template(entry_lines(read, overrides, EngineFile))
    missing = {key: problem for key, problem in source.missing_facts().items() if key not in keys}
    facts = {line.path[0]: line.value for line in lines}
    require_complete(lines, missing, source.name, EngineFile)
    version = str(facts["version"])
    name = request.name or f"sglang-{version}-{facts['platform']}"
    free_name(EntryKind.ENGINE, name, home, replace=request.replace)
    patches = source.patches(SourceChecker.of_ledger())
    options, text = _options(version, source, request, home)
    shipped, notes = _shipped(source)
    store = Store.at(home, None, _reference(facts))
    added = AddedEngine(
        file=EntryOutput.of(EntryKind.ENGINE, name, home, lines, (*notes, *_notes(facts, patches))),
        options=options,
        patches=patches,
        tables=_shipped_tables(shipped, store),
    )
    if not request.dry_run:
        if text:
            atomic_write(table_path(version, home), text)
        if shipped is not None:
            store.save_shipped(shipped.rows)
        write_entry(added.file, lines, _head(name, source, patches), EngineFile)
    return added


def _with_template(lines: Sequence[YamlLine]) -> list[YamlLine]:
    """Add the platform's Dockerfile template, unless a line sets one."""
    platform = next((line.value for line in lines if line.path == ("platform",)), None)
    if any(line.path == ("dockerfile",) for line in lines):
        return [*lines]
    template = YamlLine(
        path=("dockerfile",), value=f"sglang-{platform}", comment="of its platform"
    )  # a missing platform is reported elsewhere
    return entry_lines({line.path: line for line in (*lines, template)}, (), EngineFile)


def _reference(facts: Mapping[str, Data]) -> str | None:
    """Return the image reference that a plan of this engine uses (`base_reference`)."""
    image, digest = facts.get("image"), facts.get("image_digest")
    if image is None:
        return None
    return f"{repository(str(image))}@{digest}" if digest else str(image)


def _options(version: str, source: EngineSource, request: EngineRequest, home: Home) -> tuple[OptionTable, str]:
    """Return the flag table of the version, and its text unless the table exists."""
    catalog = Catalog.of(home)
    if (path := catalog.find(EntryKind.FLAGS, version)) is not None:
        count = len(parse_flags(version, path.read_text(encoding="utf-8")).flags)
        return OptionTable(count=count, path=catalog.display_path(path), made=False), ""
    with tempfile.TemporaryDirectory(prefix="deploy-engine-") as folder:
        source.unpack(Path(folder))
        text = flag_table(version, Path(folder), home, python=request.python)
    count = len(parse_flags(version, text).flags)
    return OptionTable(count=count, path=str(table_path(version, home)), made=True), text


def _shipped(source: EngineSource) -> tuple[ImageTables | None, tuple[str, ...]]:
    """Return the image's tables, and a note if its aiter has no readable tables."""
    try:
        return source.tables(), ()
    except (KernelsError, BuildError) as error:
        return None, (f"{error.message}: its tuned kernels are unknown",)


def _shipped_tables(shipped: ImageTables | None, store: Store) -> ShippedTables | None:
    if shipped is None:
        return None
    gpus = sorted({f"{row.key.gfx or 'an unknown GPU'} with {row.key.cu_num} CUs" for row in shipped.rows})
    return ShippedTables(
        files=shipped.files, rows=len(shipped.rows), gpus=tuple(gpus), path=str(store.folder / "shipped.csv")
    )


def _notes(facts: Mapping[str, Data], patches: Sequence[PatchState]) -> Iterator[str]:
    for patch in patches:
        if patch.state == CONFLICT:
            yield f"patch `{patch.id}` does not apply, so an image build fails: `skip_patches` omits the patch"
    if not any(facts.get(key) for key in _RUNS_IN):
        yield "the engine has no image: `--set engine.image=NAME:TAG` names one; `deploy add engine IMAGE` keeps it"
    if facts["platform"] == "rocm" and facts.get("image") and not facts.get("aiter_dir"):
        yield "the image's aiter is unknown: pull the image, then `deploy add engine IMAGE` reads it"


def _head(name: str, source: EngineSource, patches: Sequence[PatchState]) -> list[str]:
    return [
        f"{name}, as `deploy add engine` read {source.read}. The comment after each fact is its source.",
        *(f"patch {patch.id}: {patch.state}" for patch in patches),
    ]
