"""What is known of a job: the comment it carries, and the file beside its log, which outlives what Slurm remembers."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from orchestrator.core.errors import HostError
from orchestrator.core.files import atomic_write, overwrite, read_private
from orchestrator.core.record_version import RECORD_VERSION, read_versioned
from orchestrator.core.text import parse_json
from orchestrator.plan.plan import NAME

FILE: Final = "slurm.json"
SERVER: Final = "job.json"  # the record of the server's processes, which their supervisor writes on the node
START: Final = "job-start.json"  # what to start, with its secrets: this user's alone, and gone once it is read
QUESTION: Final = "arguments.json"  # what the engine in a container is asked before its server starts
CHECKER: Final = "check_server_args.py"  # by which program
REFUSAL: Final = "arguments-refused.json"  # its answer, where it refuses the arguments
_KIND: Final = "deploy"  # what tells our comment from others


@dataclass(frozen=True, kw_only=True)
class JobComment:
    """Which server a job is, as its comment says. Holds nothing secret."""

    name: str
    profile: str
    plan: str  # digest
    port: int
    run: str  # absolute path of the run directory, on the file system that the nodes share

    def to_text(self) -> str:
        """As a comment, one line of JSON."""
        return json.dumps({"kind": _KIND, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, text: str) -> "JobComment | None":
        """The comment of a job of ours; None for any other."""
        try:
            data = parse_json(text)
            if not isinstance(data, dict) or data.pop("kind", None) != _KIND:
                return None
            return _comment(data)
        except (ValueError, TypeError):
            return None


def _comment(data: dict[str, Any]) -> JobComment:
    """Raises ValueError or TypeError for what is none."""
    comment = JobComment(**data)
    _require_types(data, JobComment)
    if not NAME.match(comment.name) or not all(map(str.isprintable, (comment.profile, comment.plan, comment.run))):
        raise ValueError(comment.name)
    if not comment.run.startswith("/"):
        raise ValueError(comment.run)
    return comment


def _require_types(data: dict[str, Any], kind: type) -> None:
    for name, wanted in get_type_hints(kind).items():
        if type(data[name]) is not wanted:
            raise TypeError(name)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that was submitted; `stopped` says that somebody asked for its end."""

    job: str
    comment: JobComment
    python: str  # that has this tool, on the nodes
    stopped: bool
    version: int = RECORD_VERSION


def write_submission(run_dir: Path, submission: Submission) -> None:
    """Put it in place, whole or not at all. Raises OSError."""
    atomic_write(run_dir / FILE, json.dumps(dataclasses.asdict(submission), indent=2) + "\n", mode=0o600)


def mark_stopped(run_dir: Path, submission: Submission) -> None:
    """Note that somebody asked for the end of a job, on a full disk too. Raises OSError."""
    try:
        write_submission(run_dir, dataclasses.replace(submission, stopped=True))
    except OSError:
        if not overwrite(run_dir / FILE, b'"stopped": false', b'"stopped": true '):
            raise


def read_submission(run_dir: Path) -> Submission | None:
    """The job of a run; None where there was none. Raises HostError for a record that cannot be read."""
    path = run_dir / FILE
    try:
        return _submission(parse_json(read_private(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = "`squeue --me` lists your jobs, and `scancel JOB` ends one; then move its run directory away"
        raise HostError(f"the record `{path}` cannot be read: {reason}", hint=hint) from error


def _submission(data: object) -> Submission:
    """Raises ValueError for what is none."""
    return read_versioned(data, _checked)


def _checked(data: dict[str, Any]) -> Submission:
    """Raises ValueError, TypeError, KeyError or AttributeError for what is none."""
    data = {**data, "comment": _comment(data["comment"])}
    _require_types(data, Submission)
    submission = Submission(**data)
    if not submission.job.isdecimal():
        raise ValueError(submission.job)
    return submission
