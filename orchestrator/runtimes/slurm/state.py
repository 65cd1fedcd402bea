"""The servers of a name and their states, from Slurm's queue and the records in the run directories.

A pending or running job is identified by its comment, an ended job by the file in its run directory. Each replica has
its own job, and so does the gateway.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.errors import HostError
from orchestrator.core.logs.lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import redact
from orchestrator.engine.log import EXIT_AFTER_RANK_0, lost_another_rank
from orchestrator.plan.plan import NAME
from orchestrator.runs.run_dir import known_names, subfolders
from orchestrator.runtimes.base import LOG, NOT_FOUND, STOPPED, ServerState, Status, Unit
from orchestrator.runtimes.replicas import RecordedRun, current_runs, failed_rank, rank_dir, rank_dirs, run_root
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.arguments import rejection_in
from orchestrator.runtimes.slurm.jobs import Job, exit_reason, pending_reason
from orchestrator.runtimes.slurm.record import SERVER, JobComment, read_submission
from orchestrator.runtimes.slurm.script import JOB_LOG
from orchestrator.runtimes.supervisor.record import Record, describe_exit, read_record, record_dirs

_SKEW: Final = timedelta(seconds=30)  # maximum difference between the clocks of two hosts

_UNKNOWN_CAUSE: Final = "its node failed, or its job was cancelled"
_ENDING: Final = "its job is completing"


def state_of(run_dir: Path, ask: Callable[[], Job | None]) -> ServerState:
    """Return the state of the server of a run; `ask` queries Slurm for its job, unless the server was stopped."""
    try:
        submission, record = read_submission(run_dir), read_record(run_dir, SERVER)
    except HostError as error:
        return ServerState(status=Status.UNKNOWN, detail=f"{error.message}; {error.hint}")
    if submission is not None and submission.stopped:
        return NOT_FOUND
    return server_state(ask(), record, run_dir)


def server_state(job: Job | None, record: Record | None, run_dir: Path) -> ServerState:
    """Return the state of a server from its job and its record; after a node failure the record may be stale."""
    if job is not None and job.waits:
        return ServerState(status=Status.PENDING, restarts=job.restarts, detail=pending_reason(job))
    current = None if record is None or (job is not None and is_stale(record, job)) else record
    if job is not None and job.runs and (current is None or current.exit_code is None):
        return ServerState(status=Status.RUNNING, restarts=job.restarts, started_at=job.begins)
    return _ended(job, current, run_dir)


def is_stale(record: Record, job: Job) -> bool:
    """Return whether the record describes a start before the job was requeued."""
    if not job.restarts or job.begins is None:
        return False
    return datetime.fromisoformat(record.started_at) < datetime.fromisoformat(job.begins) - _SKEW


def _ended(job: Job | None, record: Record | None, run_dir: Path) -> ServerState:
    code = record.exit_code if record is not None else None
    if code is None and job is not None and job.is_over:
        code = job.exit_code
    by_slurm = exit_reason(job) if job is not None else ""
    otherwise = describe_exit(code) if code is not None else _UNKNOWN_CAUSE if job is None else _ENDING
    detail = by_slurm or _failed_rank(run_dir, record) or otherwise
    if record is None and not by_slurm and (lines := list(LogTail(run_dir / JOB_LOG).to_end())):
        detail += f": {redact(lines[-1])}"  # written by Slurm or this tool
    return ServerState(
        status=Status.EXITED,
        exit_code=code,
        restarts=job.restarts if job is not None else 0,
        started_at=record.started_at if record is not None else None,
        ended_at=(record.ended_at if record is not None else None) or (job.ended_at if job is not None else None),
        detail=detail,
        rejection=rejection_in(run_dir) if record is None else None,
    )


def _failed_rank(run_dir: Path, first: Record | None) -> str:
    """Return which rank failed, and how; "" on one node, and after an orderly stop: rank 0 told the others to end."""
    if first is None:
        return ""
    records = [first, *(read_record(folder, SERVER) for folder in rank_dirs(run_dir))]
    ended = {
        rank: (record, record.exit_code, record.ended_at)
        for rank, record in enumerate(records)
        if record is not None and record.exit_code is not None and record.ended_at is not None
    }
    if len(records) == 1 or 0 not in ended:
        return ""
    lost = {rank for rank in ended if lost_another_rank(LogTail(rank_dir(run_dir, rank) / LOG).to_end())}
    orderly = all(rank in ended and ended[rank][1] == EXIT_AFTER_RANK_0 for rank in range(1, len(records)))
    if orderly and not lost:
        return ""
    rank, reason = failed_rank({rank: ended_at for rank, (_, _, ended_at) in ended.items()}, lost)
    record, code, _ = ended[rank]
    return f"rank {rank} on {urlsplit(record.url).hostname} exited first: {describe_exit(code)}{reason}"


def saved_state(run_dir: Path) -> ServerState | None:
    """Return the state of the server of a run from its records alone, None if there was no job. Raises HostError."""
    submission = read_submission(run_dir)
    if submission is None:
        return None
    record = read_record(run_dir, SERVER)
    if submission.stopped or (record is not None and record.exit_code is not None):
        state = _ended(None, record, run_dir)
        return dataclasses.replace(state, detail=STOPPED) if submission.stopped else state
    return None


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
    names = {name} if name is not None else {*live, *known_names(home)}
    folders = [home.runs.absolute() / FileName(item) for item in sorted(names) if NAME.match(item)]
    return [unit for folder in folders for unit in _units_of_name(folder, live.get(folder.name, {}), handle_of)]


def _units_of_name(folder: Path, live: Mapping[Path, Unit], handle_of: Callable[[JobComment, Job], Unit]) -> list[Unit]:
    """Return the units of the current runs, then those with an unreadable record.

    If the folder cannot be listed, return its units in the queue; the process runtime lists it as unreadable.
    """
    alive, unreadable_units, run_dirs = {run_root(path) for path in live}, list[Unit](), list[Path]()
    with suppress(HostError):
        run_dirs = [] if folder.is_symlink() else subfolders(folder)

    def recorded() -> Iterator[RecordedRun]:
        for top in sorted(alive.union(run_dirs), key=lambda path: path.name, reverse=True):
            run, unreadable = _read_run(top, live, handle_of)
            if top in alive or not live:
                unreadable_units.extend(Unit.unreadable("slurm", folder.name, record_dir) for record_dir in unreadable)
            if run.units:
                yield run
            elif unreadable_units and not live:
                return

    return [*(unit for run in current_runs(recorded(), alive) for unit in run.units), *unreadable_units]


def _read_run(
    top: Path, live: Mapping[Path, Unit], handle_of: Callable[[JobComment, Job], Unit]
) -> tuple[RecordedRun, list[Path]]:
    """Return the units of a run, and the directories whose record is unreadable."""
    units, unreadable, stopped = dict[Path, Unit](), list[Path](), True
    for record_dir in dict.fromkeys((*record_dirs(top), *(path for path in live if run_root(path) == top))):
        if record_dir in live:
            units[record_dir], stopped = live[record_dir], False
            continue
        try:
            submission = read_submission(record_dir)
        except HostError:
            unreadable.append(record_dir)
            continue
        if submission is not None and submission.comment.run == str(record_dir):
            job = None if submission.stopped else jobs.find_job(submission.job)
            units[record_dir] = handle_of(submission.comment, job or Job(id=submission.job))
            stopped = stopped and submission.stopped
    main_unit = units.pop(top, None)
    return RecordedRun(folder=top, main_unit=main_unit, replicas=tuple(units.values()), stopped=stopped), unreadable
