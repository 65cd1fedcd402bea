"""Discovery of the servers of a name, from Slurm's queue and the records in the run directories.

A pending or running job is identified by its comment, an ended one by the file in its run directory. Each replica has
its own job, and so has the gateway.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import NAME
from orchestrator.runs.run_dir import known_names, subfolders
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.replicas import RecordedRun, current_runs, run_root
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.jobs import Job
from orchestrator.runtimes.slurm.record import JobComment, read_submission
from orchestrator.runtimes.supervisor.record import record_dirs


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
    folders = [home.runs.absolute() / FileName(item) for item in sorted(known) if NAME.match(item)]
    return [unit for folder in folders for unit in _units_of_name(folder, live.get(folder.name, {}), handle_of)]


def _units_of_name(folder: Path, live: Mapping[Path, Unit], handle_of: Callable[[JobComment, Job], Unit]) -> list[Unit]:
    """Return the units of the current runs, then those with an unreadable record.

    Of a folder that cannot be listed, these are the units in the queue; the process runtime lists it as unreadable.
    """
    alive, lost, run_dirs = {run_root(path) for path in live}, list[Unit](), list[Path]()
    with suppress(HostError):
        run_dirs = [] if folder.is_symlink() else subfolders(folder)

    def recorded() -> Iterator[RecordedRun]:
        for top in sorted(alive.union(run_dirs), key=lambda path: path.name, reverse=True):
            run, unreadable = _read_run(top, live, handle_of)
            if top in alive or not live:
                lost.extend(Unit.unreadable("slurm", folder.name, part) for part in unreadable)
            if run.units:
                yield run
            elif lost and not live:
                return

    return [*(unit for run in current_runs(recorded(), alive) for unit in run.units), *lost]


def _read_run(
    top: Path, live: Mapping[Path, Unit], handle_of: Callable[[JobComment, Job], Unit]
) -> tuple[RecordedRun, list[Path]]:
    """Return the units of a run, and the directories whose record is unreadable."""
    parts, unreadable, stopped = dict[Path, Unit](), list[Path](), True
    for part in dict.fromkeys((*record_dirs(top), *(path for path in live if run_root(path) == top))):
        if part in live:
            parts[part], stopped = live[part], False
            continue
        try:
            submission = read_submission(part)
        except HostError:
            unreadable.append(part)
            continue
        if submission is not None and submission.comment.run == str(part):
            job = None if submission.stopped else jobs.find_job(submission.job)
            parts[part] = handle_of(submission.comment, job or Job(id=submission.job))
            stopped = stopped and submission.stopped
    own = parts.pop(top, None)
    return RecordedRun(folder=top, own=own, replicas=tuple(parts.values()), stopped=stopped), unreadable
