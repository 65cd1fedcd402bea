"""The patched copies on disk, and the servers that run from them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from orchestrator.core.console import Progress
from orchestrator.core.files import remove_tree
from orchestrator.core.locks import file_lock
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import Cache, Runtime, Status
from orchestrator.runtimes.replicas import run_root
from orchestrator.runtimes.supervisor.patched import receipt_of


def copies(packages: Path, runtime: Runtime) -> tuple[Cache, ...]:
    """Return the copies below a folder, sorted by name; only servers of that runtime run from them.

    Raises HostError if its servers cannot be listed.
    """
    if not packages.is_dir():
        return ()
    used = list(_used(runtime))
    folders = sorted(path for path in packages.iterdir() if path.is_dir())
    return tuple(_copy(folder, packages, tuple(name for name, at in used if at == str(folder))) for folder in folders)


def _copy(folder: Path, packages: Path, servers: tuple[str, ...]) -> Cache:
    """Return a copy with its own disk usage and its servers."""
    receipt = receipt_of(folder)
    source = receipt.sources.get("sglang") if receipt else None
    version = source.version if source else None
    patches = (record.id for record in receipt.patches if record.files) if receipt else ()
    return Cache(
        kind="patched copy",
        place=str(folder),
        made_for={"sglang": version or "not whole", "patches": ", ".join(patches)},
        size=sum(_own_bytes(folder)),
        used_by=servers,
        remove=partial(_remove, folder, packages, servers),
    )


def _remove(folder: Path, packages: Path, servers: Sequence[str]) -> bool:
    """Remove a copy that no server runs from, once no command is making it."""
    if servers:
        return False
    ignore_sigpipe()
    with file_lock(folder.with_suffix(".lock"), Progress()):
        remove_tree(folder, within=packages, ignore_errors=False)
    return True


def _own_bytes(folder: Path) -> Iterator[int]:
    """Yield the size of each file with a single link; the others are shared with the installation."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a server that writes bytecode renames temporary files
                status = os.lstat(f"{place}/{name}")
                if status.st_nlink == 1:
                    yield status.st_size


def _used(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield the name of each running or pending server with its copy."""
    for unit in runtime.find():
        if unit.state.status not in {Status.RUNNING, Status.PENDING}:
            continue
        with suppress(KeyError, TypeError):  # a run without patches has no receipt
            receipt = RunDir(run_root(Path(unit.run_dir))).read_any("patches.json")
            yield unit.name, str(Path(receipt["sources"]["sglang"]["root"]).parents[1])
