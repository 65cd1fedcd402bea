"""The state of a job's server, from Slurm and the supervisor's record."""

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.errors import HostError
from orchestrator.core.logs.lines import LogTail
from orchestrator.core.secrets import redact
from orchestrator.engine.log import lost_another_rank
from orchestrator.runtimes.base import LOG, NOT_FOUND, STOPPED, ServerState, Status
from orchestrator.runtimes.replicas import LOST_RANK, rank_dir, rank_dirs
from orchestrator.runtimes.slurm.arguments import rejection_in
from orchestrator.runtimes.slurm.jobs import Job, exit_reason, pending_reason
from orchestrator.runtimes.slurm.record import SERVER, read_submission
from orchestrator.runtimes.slurm.script import JOB_LOG
from orchestrator.runtimes.supervisor.record import Record, describe_exit, read_record

_SKEW: Final = timedelta(seconds=30)  # maximum difference between the clocks of two hosts

_UNKNOWN_CAUSE: Final = "its node failed, or its job was cancelled"
_ENDING: Final = "its job is completing"


def state_of(run_dir: Path, ask: Callable[[], Job | None]) -> ServerState:
    """Return the state of the server of a run; `ask` queries its job from Slurm, unless the server was stopped."""
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
    detail = by_slurm or _first_rank(run_dir, record) or otherwise
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


def _first_rank(run_dir: Path, first: Record | None) -> str:
    """Return which rank ended before rank 0, which ends when it has lost another one; "" for none."""
    records = [(rank, read_record(folder, SERVER)) for rank, folder in enumerate(rank_dirs(run_dir), start=1)]
    ended = [(record.ended_at, rank, record) for rank, record in records if record is not None and record.ended_at]
    if not ended or first is None or first.ended_at is None:
        return ""
    when, rank, record = min(ended)
    code = record.exit_code
    if when >= first.ended_at or code is None:
        return ""
    lost = lost_another_rank(LogTail(rank_dir(run_dir, rank) / LOG).to_end())
    reason = f"{describe_exit(code)}{LOST_RANK if lost else ''}"
    return f"rank {rank} on {urlsplit(record.url).hostname} ended first: {reason}"


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
