"""The record of a server process: one JSON file beside its log, written by its supervisor."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.core.files import write_whole

FILE: Final = "process.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What has been started, and how it ended. Holds nothing secret.

    `supervisor` and `server` are `procfs.identity` texts; times are ISO 8601, UTC; an exit code of 128 + n stands for
    an end by signal n.
    """

    name: str
    profile: str
    plan_digest: str
    url: str
    argv: tuple[str, ...]
    started_at: str
    supervisor: str
    server: str | None
    exit_code: int | None
    ended_at: str | None
    stopped: bool  # somebody asked for its end


def write_record(run_dir: Path, record: Record) -> None:
    """Put the record in place, whole or not at all, readable by its owner only."""
    write_whole(run_dir / FILE, json.dumps(dataclasses.asdict(record), indent=2) + "\n", mode=0o600)


def read_record(run_dir: Path) -> Record | None:
    """The record of a run directory, None where nothing was started there.

    Raises HostError for one that cannot be read: a server may run that nothing else knows of.
    """
    path = run_dir / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{**data, "argv": tuple(data["argv"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HostError(
            f"the record `{path}` cannot be read",
            hint="see with `ps` whether that server runs, end it by hand, and move its run directory away",
        ) from error


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner may read."""
    return os.open(path, flags, 0o600)
