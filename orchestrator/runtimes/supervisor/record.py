"""The record of a server process: one JSON file beside its log, written by its supervisor."""

import dataclasses
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from orchestrator.core.errors import HostError
from orchestrator.core.files import atomic_write, overwrite, read_private
from orchestrator.core.procfs import ProcessMarkers, is_identity
from orchestrator.core.record_version import RECORD_VERSION, read_versioned
from orchestrator.core.safe_paths import FileName
from orchestrator.core.text import parse_json
from orchestrator.runtimes.replicas import in_order, is_replica, run_root

T = TypeVar("T")

FILE: Final = "process.json"
UNREADABLE: Final = FileName(f"{FILE}.unreadable")  # an unreadable record that was moved away
CONFIG: Final = "secrets.yaml"  # a FIFO, until the server has read it
_OUTPUT: Final = re.compile(r"pipe:\[[0-9]{1,20}\]")  # excludes files that others may write to, such as /dev/null


@dataclass(frozen=True, kw_only=True)
class Record:
    """The start and the end of a server process. Holds no secret.

    `supervisor` and `server` are `procfs.process_identity` texts. `token` and `output` are markers of its processes.
    Times are ISO 8601, UTC. An exit code of 128 + n means that signal n ended the server.
    """

    name: str
    profile: str
    plan_digest: str
    url: str
    argv: tuple[str, ...]
    started_at: str
    token: str
    supervisor: str
    server: str | None
    output: str | None
    exit_code: int | None
    ended_at: str | None
    stopped: bool  # its end was requested
    version: int = RECORD_VERSION

    @property
    def markers(self) -> ProcessMarkers:
        """The markers that identify the server's processes."""
        return ProcessMarkers(token=self.token, supervisor=self.supervisor, server=self.server, output=self.output)


def record_dirs(run_dir: Path) -> tuple[Path, ...]:
    """Return the directories with the records of a run and of its replicas, in order."""
    try:
        with os.scandir(run_dir) as entries:
            names = [entry.name for entry in entries if is_replica(entry.name)]
    except OSError:
        names = []
    return (run_dir, *(run_dir / FileName(name) for name in sorted(names, key=in_order)))


def run_marker(run_dir: Path) -> str:
    """Return the marker in the environment of a run's processes: its directory, known even without a record."""
    return str(run_dir.resolve())


def is_copy(record: Record, run_dir: Path) -> bool:
    """Return whether a record is another run's: in a copied home, the server belongs to the original home.

    In a moved home, a record remains that of its run.
    """
    try:
        return not run_dir.samefile(record.token)
    except OSError:
        return False


def write_record(run_dir: Path, record: Record, file: str = FILE) -> None:
    """Write the record atomically, readable by its owner only."""
    write_fields(run_dir / FileName(file), dataclasses.asdict(record))


def write_fields(path: Path, fields: dict[str, Any]) -> None:
    """Write the fields of a record atomically, readable by its owner only. Raises OSError."""
    atomic_write(path, json.dumps(fields, indent=2) + "\n", mode=0o600)


def write_stopped(path: Path, fields: dict[str, Any]) -> None:
    """Write a record with its field `stopped` set; works on a full disk too. Raises OSError."""
    try:
        write_fields(path, fields | {"stopped": True})
    except OSError:
        if not overwrite(path, b'"stopped": false', b'"stopped": true '):
            raise


def read_record(run_dir: Path, file: str = FILE) -> Record | None:
    """Return the record in a run directory; None if no server was started there.

    Raises HostError for a record that is unreadable or written by another user: it may be the only trace of a running
    server.
    """
    name = run_root(run_dir).parent.name
    hint = f"`deploy down {name}` stops the known processes of the server; then move its run directory away"
    return read_fields(run_dir / FileName(file), lambda data: _checked(data, owner=name), hint=hint)


def read_fields(path: Path, checked: Callable[[dict[str, Any]], T], *, hint: str) -> T | None:
    """Return the record that `checked` makes from a file's fields; None if there is no file. Raises HostError."""
    try:
        return read_versioned(parse_json(read_private(path)), checked)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise HostError(f"cannot read the record `{path}`: {reason}", hint=hint) from error


def _checked(data: dict[str, Any], *, owner: str) -> Record:
    """Return the record. Raises ValueError, TypeError or KeyError for invalid data."""
    argv = data["argv"]
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise TypeError("argv")
    record = Record(**{**data, "argv": tuple(argv)})
    for name, kind in get_type_hints(Record).items():
        if name != "argv" and not isinstance(data[name], kind):
            raise TypeError(name)
    if record.name != owner or not all(map(str.isprintable, (record.profile, record.plan_digest, record.url))):
        raise ValueError(record.name)
    if not all(is_identity(identity) for identity in (record.supervisor, record.server) if identity is not None):
        raise ValueError(record.supervisor)
    if not os.fsencode(record.token).startswith(b"/") or "\0" in record.token:
        raise ValueError(record.token)
    if not _OUTPUT.fullmatch(record.output or "pipe:[0]"):
        raise ValueError(record.output)
    return record


def describe_exit(code: int) -> str:
    """Return an exit code as text."""
    if code <= 128:
        return f"exit code {code}"
    return f"killed by {signal.Signals(code - 128).name}" if code - 128 in set(signal.Signals) else f"exit code {code}"
