"""`deploy prune`: remove old run directories by count and by age.

A run is removed if it has exited, is old enough, is not among the newest of its name, and is not needed by a later
command. Any other old run is kept and reported.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import DeployError, HostError, Problem, UsageError
from orchestrator.core.files import move, remove_tree
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.runs.run_dir import (
    RunDir,
    known_names,
    name_lock,
    not_started,
    read_plan,
    require_name,
    runs_of,
    version_hint,
)
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import EXIT_FILE, Status
from orchestrator.servers.exit_record import saved_state
from orchestrator.servers.group import run_dirs, servers_of
from orchestrator.servers.run_history import protected_runs
from orchestrator.servers.servers import Servers

_REMOVED: Final = ".removed-"  # prefix of a run directory while its files are removed
_AGE: Final = re.compile(r"(\d{1,5})([dh])")


def parse_older_than(text: str, now: datetime) -> datetime:
    """Parse `30d`, `12h` or a date such as `2026-11-22`, in the time zone of `now`. Raises UsageError otherwise."""
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{"days" if age[2] == "d" else "hours": int(age[1])})
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    except ValueError as error:
        hint = "`--older-than 30d`, `--older-than 12h` or `--older-than 2026-11-22`"
        raise UsageError(f"`--older-than {text}` is neither a date nor an age", hint=hint) from error


@dataclass(frozen=True, kw_only=True)
class OldRun:
    """A run that is old enough to be removed; `keep_reason` says why it is kept, "" if it is removed."""

    name: str
    run_dir: str
    bytes: int
    keep_reason: str


def prune(
    servers: Servers, name: str | None, *, keep: int, since: datetime, dry_run: bool = False
) -> tuple[OldRun, ...]:
    """Remove runs before `since`, of all names or one, except the newest `keep`; with `dry_run` only report them.

    Raises StartError if the name has no runs, and HostError at the end if a run was not removed.
    """
    names = known_names(servers.home)
    if name is not None:
        require_name(name)
        if name not in names:
            raise not_started(servers.home, name)
        names = (name,)
    reported: list[OldRun] = []
    problems: list[Problem] = []
    for item in names:
        try:
            for old in _prune(servers, item, keep=keep, since=since, dry_run=dry_run):
                reported.append(old)
                if not old.keep_reason and not dry_run:
                    _remove(Path(old.run_dir), servers.home)
        except DeployError as error:
            problems += error.problems_or_self()
        except OSError as error:
            problems.append(Problem(error.strerror or str(error), str(error.filename or "")))
    if problems:
        for old in reported:
            note(f"checked `{old.run_dir}`{f': {old.keep_reason}' if old.keep_reason else ''}")
        raise HostError("cannot remove all old runs", problems=problems)
    return tuple(reported)


def prune_text(old_runs: tuple[OldRun, ...], *, dry_run: bool) -> str:
    """Return the removed runs, the kept runs with reasons, and the total size as text."""
    gone = [old for old in old_runs if not old.keep_reason]
    lines = [f"`{old.run_dir}` stays: {old.keep_reason}" for old in old_runs if old.keep_reason]
    lines += [f"{'would remove' if dry_run else 'removed'} `{old.run_dir}`, {old.bytes:,} bytes" for old in gone]
    runs = "1 run" if len(gone) == 1 else f"{len(gone)} runs"
    return "\n".join([*lines, f"{runs}, {sum(old.bytes for old in gone):,} bytes"])


def _prune(servers: Servers, name: str, *, keep: int, since: datetime, dry_run: bool) -> Iterator[OldRun]:
    """Yield the old runs of a name while holding its lock; finish removals that were interrupted."""
    folder = servers.home.runs / FileName(name)
    if not (_old(servers, name, keep, since) or any(folder.glob(f"{_REMOVED}*"))):
        return
    with nullcontext() if dry_run else name_lock(servers.home, name):
        for leftover in () if dry_run else folder.glob(f"{_REMOVED}*"):
            remove_tree(leftover, within=folder, ignore_errors=False)
        needed, found_dirs, responded = protected_runs(servers.home, name), list[Path](), set[str]()
        for kind, runtime in servers.runtimes.items():
            with suppress(HostError):
                found_dirs += run_dirs(servers_of(runtime, runtime.find(name)))
                responded.add(kind)
        for run in _old(servers, name, keep, since):
            size, saved = 0, needed.get(run, "")
            if run.other_version:
                saved = saved or f"{run.other_version}; {version_hint(run)}"
            if run.path.stat().st_uid != os.geteuid():
                saved = saved or "another user owns the directory"
            else:
                size, saved = _size(run.path), saved or _may_run(run, found_dirs, responded)
            yield OldRun(name=name, run_dir=str(run.path), bytes=size, keep_reason=saved)


def _old(servers: Servers, name: str, keep: int, since: datetime) -> list[RunDir]:
    runs = [run for run in runs_of(servers.home, name) if run.digest]
    return [run for run in runs[keep:] if run.started is not None and run.started < since]


def _may_run(run: RunDir, found_dirs: Iterable[Path], responded: Collection[str]) -> str:
    """Return why the server of a run may still be running; "" if it has exited.

    `found_dirs` are the run directories of all servers of the name, `responded` the runtimes that listed them. Only
    the daemon on its host knows a container, so the daemon must have responded and a record of the exit must exist.
    """
    if any(_same(run_dir, run.path) for run_dir in found_dirs):
        return "`deploy status` still lists its server"
    if not any(run.path.iterdir()):
        return ""
    plan = read_plan(run)
    if plan is not None and plan.runtime not in responded:
        return f"cannot query {plan.runtime} for its server"
    state = saved_state(run)
    if run.read(EXIT_FILE).get("how") or (state is not None and state.status is Status.EXITED):
        return ""
    if plan is not None and runtime_class(plan.runtime).in_container and run.log.is_file():
        return ""  # a stop saves the log of the container
    return "its server may still be running"


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return False


def _size(folder: Path) -> int:
    """Return the total size of the files below a folder in bytes, without following links."""
    return sum(os.lstat(f"{location}/{name}").st_size for location, _, names in os.walk(folder) for name in names)


def _remove(run_dir: Path, home: Home) -> None:
    """Remove a run directory; rename it first, so that no command reads a half-removed run. Raises OSError."""
    ignore_sigpipe()
    gone = move(run_dir, run_dir.with_name(f"{_REMOVED}{run_dir.name}"))
    remove_tree(gone, within=home.runs, ignore_errors=False)
