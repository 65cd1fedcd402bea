"""The record of a job: its comment, and a file next to its log, which remains when Slurm has forgotten the job."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.core.text import parse_json
from orchestrator.plan.plan import NAME
from orchestrator.runtimes.supervisor.record import read_fields

FILE: Final = "slurm.json"
SERVER: Final = "job.json"  # the record of the server's processes, which the supervisor writes on the node
START: Final = "job-start.json"  # the request with its secrets: readable by this user only, removed once read
QUESTION: Final = "arguments.json"  # input of the engine's check in a container, before its server starts
CHECKER: Final = "check_server_args.py"  # the program of the check
REJECTION: Final = "arguments-rejected.json"  # its result, if the engine rejects the arguments
_KIND: Final = "deploy"  # marks the comments of this tool


@dataclass(frozen=True, kw_only=True)
class JobComment:
    """The server of a job, as stored in the job's comment. Holds no secret."""

    name: str
    profile: str
    plan: str  # digest
    port: int
    run: str  # absolute path of the run directory, on the nodes' shared file system

    def to_text(self) -> str:
        """Return the comment as one line of JSON."""
        return json.dumps({"kind": _KIND, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, text: str) -> "JobComment | None":
        """Parse the comment of a job; None if this tool did not submit it."""
        try:
            data = parse_json(text)
            if not isinstance(data, dict) or data.pop("kind", None) != _KIND:
                return None
            return _comment(data)
        except (ValueError, TypeError):
            return None


def _comment(data: dict[str, Any]) -> JobComment:
    """Return the comment. Raises ValueError or TypeError for invalid data."""
    comment = JobComment(**data)
    _require_types(data, JobComment)
    if not NAME.match(comment.name) or not all(map(str.isprintable, (comment.profile, comment.plan, comment.run))):
        raise ValueError(comment.name)
    if not comment.run.startswith("/"):
        raise ValueError(comment.run)
    return comment


def _require_types(data: dict[str, Any], kind: type) -> None:
    for name, expected in get_type_hints(kind).items():
        if type(data[name]) is not expected:
            raise TypeError(name)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A submitted job. `stopped` is true once its end was requested."""

    job: str
    comment: JobComment
    python: str  # the interpreter with this tool, on the nodes
    stopped: bool
    version: int = RECORD_VERSION


def read_submission(run_dir: Path) -> Submission | None:
    """Return the job of a run; None if no job was submitted. Raises HostError for an unreadable record."""
    hint = "`squeue --me` lists your jobs, and `scancel JOB` cancels one; then move its run directory away"
    return read_fields(run_dir / FILE, _checked, hint=hint)


def _checked(data: dict[str, Any]) -> Submission:
    """Return the record. Raises ValueError, TypeError, KeyError or AttributeError for invalid data."""
    data = {**data, "comment": _comment(data["comment"])}
    _require_types(data, Submission)
    submission = Submission(**data)
    if not submission.job.isdecimal():
        raise ValueError(submission.job)
    return submission
