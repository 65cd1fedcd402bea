"""The servers of a name: what Slurm's queue and the records in the run directories tell together.

A job that waits or runs is told by its comment, one that has ended by the file in its run directory. Of several servers
each has a job of its own, and so has their gateway; later starts may have replaced some of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import NAME
from orchestrator.runtimes.base import Handle
from orchestrator.runtimes.replicas import joined, together, top_of
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.jobs import Job
from orchestrator.runtimes.slurm.record import JobComment, read_submission
from orchestrator.runtimes.supervisor.record import parts_of


def found_servers(runs: Path, name: str | None, handle_of: Callable[[JobComment, Job], Handle]) -> list[Handle]:
    """The servers of that name, or of all names; `runs` is the home's folder of run directories.

    Raises HostError where Slurm, or the runs of this home, cannot be asked.
    """
    live: dict[str, dict[Path, Handle]] = {}
    for number, text in jobs.queued():
        comment = JobComment.read(text)
        if comment is None or name not in {None, comment.name}:
            continue
        if (job := jobs.find_job(number)) is not None and not job.is_over:
            live.setdefault(comment.name, {})[Path(comment.run)] = handle_of(comment, job)
    known = {name} if name is not None else live.keys() | _names(runs)
    names = sorted(each for each in known if NAME.match(each))
    return [each for one in names for each in _of_name(runs / FileName(one), live.get(one, {}), handle_of)]


def forgotten(number: str) -> Job:
    """A job of which Slurm tells nothing: it has not been looked at, or it has ended long ago."""
    return Job(id=number, state="", reason="", node="", restarts=0, exit_code=0, begins=None, ended_at=None)


@dataclass(kw_only=True)
class _Start:
    """What is known of one start: a server, or several and their gateway."""

    server: Handle | None = None
    stopped: bool = True  # somebody asked for the end of all of it
    lost: list[Handle] = field(default_factory=list)  # whose records cannot be read


def _of_name(folder: Path, live: Mapping[Path, Handle], handle_of: Callable[[JobComment, Job], Handle]) -> list[Handle]:
    """The starts that are not over; where all are, the last one, unless somebody ended that."""
    alive = {top_of(path) for path in live}
    left, found, lost = set(alive), list[Handle](), list[Handle]()
    for top in sorted(alive | _run_dirs(folder), key=lambda path: path.name, reverse=True):
        left.discard(top)
        start = _read_start(folder.name, top, live, handle_of)
        if top in alive or not live:
            lost += start.lost
        if start.server is None:
            if lost and not live:
                break
            continue
        if start.stopped and start.server.identity and not left:  # a server by itself, or a gateway
            break
        if not start.stopped and (top in alive or not live or start.server.replicas):
            found.append(start.server)
        if not left and any(handle.identity or not handle.replicas for handle in found):
            break
    return [*joined(found), *lost]


def _read_start(
    name: str, top: Path, live: Mapping[Path, Handle], handle_of: Callable[[JobComment, Job], Handle]
) -> _Start:
    start, parts = _Start(), dict[Path, Handle]()
    for part in dict.fromkeys((*parts_of(top), *(path for path in live if top_of(path) == top))):
        if part in live:
            parts[part], start.stopped = live[part], False
            continue
        try:
            submission = read_submission(part)
        except HostError:
            start.lost.append(_lost(name, part))
            continue
        if submission is not None and submission.comment.run == str(part):
            job = None if submission.stopped else jobs.find_job(submission.job)
            parts[part] = handle_of(submission.comment, job or forgotten(submission.job))
            start.stopped = start.stopped and submission.stopped
    own = parts.pop(top, None)
    if own is not None or parts:
        start.server = together(own, tuple(parts.values()))
    return start


def _run_dirs(folder: Path) -> set[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return set()
    return {path for path in folder.iterdir() if path.is_dir()}


def _names(runs: Path) -> set[str]:
    try:
        return {path.name for path in runs.iterdir() if NAME.match(path.name)}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        why = f"`{runs}` cannot be looked through: {error.strerror}"
        raise HostError(why, hint="set DEPLOY_HOME") from error


def _lost(name: str, run_dir: Path) -> Handle:
    """A server whose record cannot be read, and of which no job in the queue tells."""
    return Handle(runtime="slurm", name=name, profile="", plan_digest="", url="", run_dir=str(run_dir), identity="")
