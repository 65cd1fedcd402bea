"""The record of a server process: one JSON file beside its log, written by its supervisor."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    beside = run_dir / f".{FILE}.{os.getpid()}"
    try:
        with open(beside, "w", opener=private) as file:
            json.dump(dataclasses.asdict(record), file, indent=2)
            file.write("\n")
        beside.replace(run_dir / FILE)
    finally:
        beside.unlink(missing_ok=True)


def read_record(run_dir: Path) -> Record | None:
    """The record of a run directory, None where nothing was started there."""
    try:
        data = json.loads((run_dir / FILE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Record(**{**data, "argv": tuple(data["argv"])})


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner may read."""
    return os.open(path, flags, 0o600)
