"""Discovery of the servers of a name, from Slurm's queue and the records in the run directories.

A pending or running job is identified by its comment, an ended one by the file in its run directory. Each replica has
its own job, and so has the gateway. Later runs may have replaced some replicas.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import NAME
from orchestrator.runs.run_dir import known_names, subfolders
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.replicas import run_root
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.jobs import Job
from orchestrator.runtimes.slurm.record import JobComment, read_submission
from orchestrator.runtimes.supervisor.record import parts_of


def found_units(home: Home, name: str | None, handle_of: Callable[[JobComment, Job], Unit]) -> list[Unit]:
    """Return the units of that name, or of all names.

    Raises HostError if Slurm does not answer or the runs of this home cannot be listed.
    """
    live: dict[str, dict[Path, Unit]] = {}
    for number, text in jobs.queued():
        comment = JobComment.read(text)
        if comment is None or name not in {None, comment.name}:
            continue
        if (job := jobs.find_job(number)) is not None and not job.is_over:
            live.setdefault(comment.name, {})[Path(comment.run)] = handle_of(comment, job)
    known = {name} if name is not None else {*live, *known_names(home)}
    folders = [home.runs.absolute() / FileName(each) for each in sorted(known) if NAME.match(each)]
    return [each for folder in folders for each in _of_name(folder, live.get(folder.name, {}), handle_of)]


def forgotten(number: str) -> Job:
    """Return a placeholder for a job that was not queried, or that Slurm no longer knows."""
    return Job(id=number, state="", reason="", node="", restarts=0, exit_code=0, begins=None, ended_at=None)


@dataclass(kw_only=True)
class _Start:
    """The known units of one run: a server, or replicas and their gateway."""

    own: Unit | None = None  # a server without replicas, or the gateway
    behind: tuple[Unit, ...] = ()
    stopped: bool = True  # all units were stopped on request
    lost: list[Unit] = field(default_factory=list)  # units with unreadable records


def _of_name(folder: Path, live: Mapping[Path, Unit], handle_of: Callable[[JobComment, Job], Unit]) -> list[Unit]:
    """Return the units of the runs that are not over; if all are, of the last run unless it was stopped.

    Of a folder that cannot be listed, these are the units in the queue; the process runtime lists it as unreadable.
    """
    alive = {run_root(path) for path in live}
    left, found, lost, run_dirs = set(alive), list[_Start](), list[Unit](), list[Path]()
    with suppress(HostError):
        run_dirs = [] if folder.is_symlink() else subfolders(folder)
    for top in sorted(alive.union(run_dirs), key=lambda path: path.name, reverse=True):
        left.discard(top)
        start = _read_start(folder.name, top, live, handle_of)
        if top in alive or not live:
            lost += start.lost
        if start.own is None and not start.behind:
            if lost and not live:
                break
            continue
        if start.stopped and start.own is not None and not left:  # a server without replicas, or a gateway
            break
        if not start.stopped and (top in alive or not live or start.behind):
            found.append(start)
        if not left and any(start.own is not None for start in found):
            break
    return [*(unit for start in found for unit in ((start.own,) if start.own else ()) + start.behind), *lost]


def _read_start(
    name: str, top: Path, live: Mapping[Path, Unit], handle_of: Callable[[JobComment, Job], Unit]
) -> _Start:
    start, parts = _Start(), dict[Path, Unit]()
    for part in dict.fromkeys((*parts_of(top), *(path for path in live if run_root(path) == top))):
        if part in live:
            parts[part], start.stopped = live[part], False
            continue
        try:
            submission = read_submission(part)
        except HostError:
            start.lost.append(Unit.unreadable("slurm", name, part))
            continue
        if submission is not None and submission.comment.run == str(part):
            job = None if submission.stopped else jobs.find_job(submission.job)
            parts[part] = handle_of(submission.comment, job or forgotten(submission.job))
            start.stopped = start.stopped and submission.stopped
    start.own = parts.pop(top, None)
    start.behind = tuple(parts.values())
    return start
