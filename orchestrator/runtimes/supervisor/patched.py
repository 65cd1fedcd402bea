"""Patched copies of an interpreter's sglang, first on PYTHONPATH, and the servers that run from them.

Every process of a server imports the copy, and its JIT compiles the sources there. The installation is not changed, and
still provides all other packages.

::

    packages/<digest>/python/sglang/   the package: hard links, except for files that patches wrote
    packages/<digest>/tables/          input files of patches
    packages/<digest>/receipt.json     written last; a killed command leaves a folder without it
    packages/<digest>.lock             locked while the copy is made
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError, PatchError
from orchestrator.core.files import atomic_write, copy_tree, remove_file, remove_tree
from orchestrator.core.locks import file_lock
from orchestrator.core.safe_paths import FileName
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.core.subprocesses import CompletedProgram, run
from orchestrator.core.text import parse_json
from orchestrator.images.receipt import ImageReceipt, parse_receipt
from orchestrator.images.sources import program_paths
from orchestrator.patches.ledger import manifest
from orchestrator.patches.schema import AddedFile, Diff, Patch
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import Cache, Runtime, Status
from orchestrator.runtimes.replicas import run_root

_FINDS: Final = 60.0  # seconds for an interpreter to report its imports; another program might never end
_RECEIPT: Final = "receipt.json"
_APPLIED: Final = frozenset({"applied", "upstream"})  # the applier's states of a patch that is in place
_NO_TABLE: Final = (
    "`deploy kernels coverage PROFILE` shows the use of the table; `skip_patches` in the profile omits it"
)
_CHECK_HINT: Final = "`deploy patches check --source {}` shows every patch; a newer sglang may have the fix"


@dataclass(frozen=True, kw_only=True)
class SourcePatches:
    """A plan's patches for the sources of an interpreter, and their input files by destination."""

    patches: tuple[Patch, ...]
    diffs: Mapping[str, str]  # patch id -> text
    tables: Mapping[str, bytes]
    unexpected: frozenset[str]  # ids of patches that the plan's version should not need

    def manifest(self, locations: Mapping[str, str]) -> str:
        """Return the applier's manifest. `locations` replaces destinations of files."""
        entries = parse_json(manifest(self.patches, self.diffs, unexpected=self.unexpected))
        for entry in entries:
            if destination := entry["apply"].get("destination"):
                entry["apply"]["destination"] = locations.get(destination, destination)
        return json.dumps(entries)


@dataclass(frozen=True, kw_only=True)
class PatchedCopy:
    """A patched copy on disk, with its receipt."""

    folder: Path
    receipt: ImageReceipt
    made: bool  # by this call; False if it existed

    @property
    def python_path(self) -> str:
        """The first entry of PYTHONPATH."""
        return str(self.folder / "python")


def patched_copy(python: str, sources: SourcePatches, packages: Path) -> PatchedCopy:
    """Return the patched copy of the sglang that `python` imports; make it below `packages` if it is missing.

    If two commands need the same copy, one waits for the other. A failed or interrupted command leaves no copy. Raises
    PatchError for a patch that cannot be applied, BuildError if the sources are missing or cannot be copied.
    """
    _require_sglang(sources)
    installed = find_sources(python)
    if "sglang" not in installed:
        hint = "choose an interpreter that has sglang: `--set engine.python=…`; or `--set runtime=docker`"
        raise BuildError(f"`{python}` has no sglang to patch", hint=hint)
    folder = packages / FileName(_digest(python, sources, installed)[:16])
    if (receipt := receipt_of(folder)) is not None:
        return PatchedCopy(folder=folder, receipt=receipt, made=False)
    progress = Progress()
    with file_lock(folder.with_suffix(".lock"), progress):
        if (receipt := receipt_of(folder)) is not None:  # another command has made it meanwhile
            return PatchedCopy(folder=folder, receipt=receipt, made=False)
        try:
            remove_tree(folder, within=packages)
            receipt = _make(folder, python, sources, installed)
        except OSError as error:
            raise BuildError(f"cannot write `{folder}`: {error.strerror or error}") from error
        finally:
            if receipt_of(folder) is None:
                remove_tree(folder, within=packages)
    return PatchedCopy(folder=folder, receipt=receipt, made=True)


def _make(folder: Path, python: str, sources: SourcePatches, installed: Mapping[str, Any]) -> ImageReceipt:
    package = folder / "python" / "sglang"
    copy_tree(Path(installed["sglang"]["root"]), package, linked=True)
    locations = {destination: table_in(folder, destination) for destination in sources.tables}
    for destination, content in sources.tables.items():
        atomic_write(Path(locations[destination]), content)
    record = folder / "applied.json"
    argv = ("apply", "--manifest", "-", "--receipt", str(record), "--root", f"sglang={package}")
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, [str(folder / "python"), before]))
    done = _run(python, *argv, stdin=sources.manifest(locations), path=path)
    if not done.ok:
        message = f"a patch does not apply to the sources that `{python}` imports"
        hint = _CHECK_HINT.format(installed["sglang"]["root"])
        raise PatchError(message, details=done.stderr.strip().removeprefix("error: "), hint=hint)
    data = parse_json(record.read_text(encoding="utf-8"))
    remove_file(record)
    data["sources"]["sglang"]["commit"] = installed["sglang"]["commit"]  # the copy is not a git checkout
    receipt = parse_receipt(json.dumps(data))
    _require_tables(python, sources, receipt)
    atomic_write(folder / _RECEIPT, json.dumps(data, indent=2) + "\n")
    return receipt


def _require_sglang(sources: SourcePatches) -> None:
    """Raise PatchError if a diff changes a package other than sglang, the only package that is copied."""
    for patch in sources.patches:
        if isinstance(patch.apply, Diff) and patch.sources != "sglang":
            message = f"patch `{patch.id}` changes {patch.sources}, which the process runtime does not copy"
            raise PatchError(message, hint="`--set runtime=docker`, or omit the patch with `skip_patches`")


def _require_tables(python: str, sources: SourcePatches, receipt: ImageReceipt) -> None:
    """Raise PatchError if the package of a patch does not read its input file."""
    for patch in sources.patches:
        requested = isinstance(patch.apply, AddedFile) and patch.apply.destination in sources.tables
        if requested and (state := receipt.state(patch.id)) not in _APPLIED:
            evidence = next(record.evidence for record in receipt.patches if record.id == patch.id)
            message = f"patch `{patch.id}` is {state} for the sources that `{python}` imports"
            raise PatchError(message, details="\n".join(evidence), hint=_NO_TABLE)


def table_in(folder: Path | str, destination: str) -> str:
    """Return the path in a copy for a file that has the path `destination` in an image."""
    return f"{folder}/tables/{PurePosixPath(destination).name}"


def find_sources(python: str) -> dict[str, Any]:
    """Return root, version and commit of sglang and aiter, by name, as this Python imports them. Raises BuildError."""
    done = _run(python, "find", timeout=_FINDS)
    try:
        return dict(parse_json(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError) as error:
        message = f"cannot query which sglang `{python}` imports"
        hint = "correct `engine.python`: it must import sglang"
        raise BuildError(message, details=done.stderr.strip()[-2000:], hint=hint) from error


def sources_identity(python: str) -> str | None:
    """Return a digest of this Python's sglang: its location, and each file's size and time; None without sglang.

    Raises BuildError, HostError.
    """
    installed = find_sources(python)
    return _sources_digest(python, installed).hexdigest() if "sglang" in installed else None


def _run(
    python: str, *arguments: str, stdin: str | None = None, path: str | None = None, timeout: float | None = None
) -> CompletedProgram:
    env = {"ALLOW_UNTUNED": "1"} | ({} if path is None else {"PYTHONPATH": path})  # `up` has required tuned kernels
    return run([python, "-B", str(program_paths()[0]), *arguments], env=env, stdin=stdin, timeout=timeout)


def _digest(python: str, sources: SourcePatches, installed: Mapping[str, Any]) -> str:
    """Return a digest of the patches, the applier, and the sources with each file's size and time."""
    total = _sources_digest(python, installed)
    programs = (path.read_bytes() for path in program_paths())
    for content in (sources.manifest({}).encode(), *programs, *sources.tables.values()):
        total.update(f"{len(content)}\0".encode() + content)
    return total.hexdigest()


def _sources_digest(python: str, installed: Mapping[str, Any]) -> "hashlib._Hash":
    """Hash the location of sglang's sources, and each file's size and time."""
    total = hashlib.sha256(f"{python}\0{json.dumps(installed, sort_keys=True)}\0".encode())
    for stamp in sorted(_stamps(installed["sglang"]["root"])):
        total.update(stamp.encode("utf-8", "surrogateescape"))
    return total


def _stamps(root: str) -> Iterator[str]:
    """Yield the name, size and time of each file, except compiled bytecode."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = f"{folder}/{name}"
            status = os.lstat(path)
            yield f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0"


def receipt_of(folder: Path) -> ImageReceipt | None:
    """Return the receipt of a copy; None if the copy is incomplete or a patched file has changed."""
    try:
        receipt = parse_receipt((folder / _RECEIPT).read_text(encoding="utf-8"))
        files = [file for record in receipt.patches for file in record.files]
        is_unchanged = all(hashlib.sha256(Path(file.path).read_bytes()).hexdigest() == file.after for file in files)
    except (OSError, ValueError):
        return None
    return receipt if is_unchanged else None


def copies(packages: Path, runtime: Runtime) -> tuple[Cache, ...]:
    """Return the copies below a folder, sorted by name; only servers of that runtime run from them.

    Raises HostError if its servers cannot be listed.
    """
    if not packages.is_dir():
        return ()
    uses = list(_used(runtime))
    folders = sorted(path for path in packages.iterdir() if path.is_dir())
    return tuple(_copy(folder, packages, tuple(name for name, at in uses if at == str(folder))) for folder in folders)


def _copy(folder: Path, packages: Path, servers: tuple[str, ...]) -> Cache:
    """Return a copy with its own disk usage and its servers."""
    receipt = receipt_of(folder)
    source = receipt.sources.get("sglang") if receipt else None
    version = source.version if source else None
    patches = (record.id for record in receipt.patches if record.files) if receipt else ()
    return Cache(
        kind="patched copy",
        location=str(folder),
        requirements={"sglang": version or "incomplete", "patches": ", ".join(patches)},
        size=sum(_own_bytes(folder)),
        used_by=servers,
        remove=partial(_remove, folder, packages, servers),
    )


def _remove(folder: Path, packages: Path, servers: Sequence[str]) -> bool:
    """Remove a copy once no command is making it. Return False, and keep it, if a server runs from it."""
    if servers:
        return False
    ignore_sigpipe()
    with file_lock(folder.with_suffix(".lock"), Progress()):
        remove_tree(folder, within=packages, ignore_errors=False)
    return True


def _own_bytes(folder: Path) -> Iterator[int]:
    """Yield the size of each file with a single link; the others are shared with the installation."""
    for location, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a server that writes bytecode renames temporary files
                status = os.lstat(f"{location}/{name}")
                if status.st_nlink == 1:
                    yield status.st_size


def _used(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield the name of each running or pending server, and its copy."""
    for unit in runtime.find():
        if unit.state.status not in {Status.RUNNING, Status.PENDING}:
            continue
        with suppress(KeyError, TypeError):  # a run without patches has no receipt
            receipt = RunDir(run_root(Path(unit.run_dir))).read_any("patches.json")
            yield unit.name, str(Path(receipt["sources"]["sglang"]["root"]).parents[1])
