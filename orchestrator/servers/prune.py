"""`deploy prune`: remove old run directories by count and by age.

A run is removed if it is not among the newest of its name, is old enough, has exited, is not needed by a later command,
and contains only files of `deploy`. Any other run is kept and reported.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import DeployError, HostError, Problem
from orchestrator.core.files import remove_file, remove_folder
from orchestrator.core.safe_paths import FileName, RelativePath
from orchestrator.runs.run_dir import (
    FILES_FILE,
    REQUEST_FILE,
    RESULTS_FILE,
    SMOKE_FILE,
    RunDir,
    known_names,
    name_lock,
    not_started,
    read_plan,
    require_name,
    runs_of,
    version_hint,
)
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.runtimes.base import EXIT_FILE, LOG, Status
from orchestrator.servers.exit_record import RESTARTS_FILE, saved_state
from orchestrator.servers.group import run_dirs
from orchestrator.servers.run_history import protected_runs
from orchestrator.servers.servers import PROCESSES_FILE, Servers

_LAST: Final = (FILES_FILE, "plan.json")  # removed after what they tell of, and before the record of an end
_OURS: Final = frozenset(
    {
        *_LAST,
        EXIT_FILE,
        RESTARTS_FILE,
        REQUEST_FILE,
        "preflight.json",
        "image.json",
        "patches.json",
        "kernels.json",
        RESULTS_FILE,
        "untuned.csv",
        "server.sh",
        SMOKE_FILE,
    }
    | {PROCESSES_FILE, LOG, f"{LOG}.new"}
)
_PIECE: Final = re.compile(rf"{re.escape(LOG)}\.[1-9][0-9]*")
# Folders of replicas and ranks.
_PARTS: Final = re.compile(r"\A(?:(?:replica|prefill|decode)-[1-9][0-9]?/)?(?:rank-[1-9][0-9]*/)?")
_BESIDE: Final = re.compile(r"\A\.(.+)\.[0-9]+\Z")  # what a command that was killed has left beside a file it wrote


@dataclass(frozen=True, kw_only=True)
class PruneRequest:
    """What may go: no run of the newest `keep` of a name, and none that is younger than `since`."""

    keep: int
    since: datetime
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class OldRun:
    """A run that is old enough to go; `kept` says why it stays, "" where it goes."""

    name: str
    run_dir: str
    bytes: int
    kept: str


def prune(servers: Servers, name: str | None, request: PruneRequest) -> tuple[OldRun, ...]:
    """Remove old runs (of that name); with `dry_run` only report them.

    Raises StartError if the name has no runs, and HostError at the end if a run was not removed.
    """
    names = known_names(servers.home)
    if name is not None:
        require_name(name)
        if name not in names:
            raise not_started(servers.home, name)
        names = (name,)
    told: list[OldRun] = []
    problems: list[Problem] = []
    for each in names:
        try:
            for old in _prune(servers, each, request):
                told.append(old)
                if not old.kept and not request.dry_run:
                    _remove(RunDir(Path(old.run_dir)))
        except (DeployError, OSError) as error:
            problems += error.problems_or_self() if isinstance(error, DeployError) else [_problem(error)]
    if problems:
        for old in told:
            note(f"checked `{old.run_dir}`{f': {old.kept}' if old.kept else ''}")
        raise HostError("cannot remove all old runs", problems=problems)
    return tuple(told)


def prune_text(found: tuple[OldRun, ...], *, dry_run: bool) -> str:
    """Return a text with the removed runs, the kept ones with reasons, and the total size."""
    gone = [old for old in found if not old.kept]
    lines = [f"`{old.run_dir}` stays: {old.kept}" for old in found if old.kept]
    lines += [f"{'would remove' if dry_run else 'removed'} `{old.run_dir}`, {old.bytes:,} bytes" for old in gone]
    runs = "1 run" if len(gone) == 1 else f"{len(gone)} runs"
    return "\n".join([*lines, f"{runs}, {sum(old.bytes for old in gone):,} bytes"])


def _prune(servers: Servers, name: str, request: PruneRequest) -> Iterator[OldRun]:
    """Yield the old runs of a name while holding its lock."""
    if not _old(servers, name, request):
        return
    with nullcontext() if request.dry_run else name_lock(servers.home, name):
        needed, found = protected_runs(servers.home, name), _Found.of(servers, name)
        yield from (_judged(name, run, needed, found) for run in _old(servers, name, request))


def _old(servers: Servers, name: str, request: PruneRequest) -> list[RunDir]:
    runs = [run for run in runs_of(servers.home, name) if run.digest]
    return [run for run in runs[request.keep :] if run.started is not None and run.started < request.since]


@dataclass(frozen=True)
class _Found:
    """The servers of a name, and the runtimes that responded."""

    run_dirs: tuple[Path, ...]
    asked: frozenset[str]

    @classmethod
    def of(cls, servers: Servers, name: str) -> "_Found":
        found: list[Path] = []
        asked = set()
        for kind, runtime in servers.runtimes.items():
            with suppress(HostError):
                found += run_dirs(runtime.find(name))
                asked.add(kind)
        return cls(tuple(found), frozenset(asked))

    def may_run(self, run: RunDir, *, empty: bool) -> str:
        """Return why the server of a run may still be running; "" if it has exited.

        Only the daemon of its host knows a container: it must have responded, and a record of the exit must exist.
        """
        if any(_same(run_dir, run.path) for run_dir in self.run_dirs):
            return "`deploy status` still lists its server"
        if empty:
            return ""
        plan = read_plan(run)
        if plan is not None and plan.runtime not in self.asked:
            return f"cannot query {plan.runtime} for its server"
        state = saved_state(run)
        if run.read(EXIT_FILE).get("how") or (state is not None and state.status is Status.EXITED):
            return ""
        if plan is not None and runtime_class(plan.runtime).in_container and run.log.is_file():
            return ""  # the log of a container is kept when it is stopped
        return "its server may still be running"


def _judged(name: str, run: RunDir, needed: Mapping[RunDir, str], found: _Found) -> OldRun:
    size, kept = 0, needed.get(run, "")
    try:
        held = _contents(run)
        size = sum(status.st_size for _, status in held if not stat.S_ISDIR(status.st_mode))
        kept = kept or _of_other_version(run) or found.may_run(run, empty=not held) or _stranger(run, held)
    except OSError as error:
        kept = f"cannot list its files: {error.strerror}"
    return OldRun(name=name, run_dir=str(run.path), bytes=size, kept=kept)


def _of_other_version(run: RunDir) -> str:
    return f"{run.other_version}; {version_hint(run)}" if run.other_version else ""


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return False


def _contents(run: RunDir) -> list[tuple[str, os.stat_result]]:
    """Return the contents of a run directory by relative path, folders after their contents. Raises OSError."""
    own = run.path.lstat()
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid():
        raise PermissionError(1, "another user owns the directory", str(run.path))
    return [
        (str((Path(place) / FileName(name)).relative_to(run.path)), os.stat(name, dir_fd=at, follow_symlinks=False))
        for place, folders, files, at in os.fwalk(run.path, topdown=False, onerror=_raise)
        for name in (*files, *folders)
    ]


def _raise(error: OSError) -> None:
    raise error


def _stranger(run: RunDir, found: Sequence[tuple[str, os.stat_result]]) -> str:
    """Return the reason to keep a run directory: a file that `deploy` did not write; "" if there is none."""
    listed = run.read(FILES_FILE).get("files")
    rendered = {str(each) for each in listed} if isinstance(listed, list) else set()
    of_runtimes = _of_runtimes()
    for path, status in found:
        mode, known = status.st_mode, _BESIDE.sub(r"\1", _PARTS.sub("", path))
        if stat.S_ISDIR(mode):
            ours = not _PARTS.sub("", f"{path}/") or any(file.startswith(f"{path}/") for file in rendered)
        elif stat.S_ISFIFO(mode):
            ours = known in of_runtimes
        else:
            named = known in {*rendered, *_OURS, *of_runtimes} or _PIECE.fullmatch(known) is not None
            ours = named and stat.S_ISREG(mode)
        if not ours or status.st_uid != os.geteuid():
            return f"`{path}` in it is not a file of `deploy`"
    return ""


def _of_runtimes() -> tuple[str, ...]:
    return tuple(file for name in REGISTRY for file in sorted(runtime_class(name).run_files))


def _remove(run: RunDir) -> None:
    """Remove a run directory and its files. Raises OSError, HostError."""
    found = _contents(run)
    if stranger := _stranger(run, found):
        raise HostError(f"the directory has changed: {stranger}", location=str(run.path))
    records = (*_LAST, *_of_runtimes(), EXIT_FILE)
    for path, status in sorted(found, key=lambda each: records.index(each[0]) if each[0] in records else -1):
        at = run.path / RelativePath(path)
        remove_folder(at) if stat.S_ISDIR(status.st_mode) else remove_file(at)
    remove_folder(run.path)


def _problem(error: OSError) -> Problem:
    return Problem(error.strerror or str(error), str(error.filename or ""))
