"""Logs in the run directory: written by a supervisor, or saved at a stop."""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Final

from orchestrator.core.logs.lines import LogTail
from orchestrator.runtimes.base import LOG, ServerState, Status, Unit

_INTERVAL: Final = 0.2  # seconds between two polls of a log


def supervised_log(
    unit: Unit, state: Callable[[], ServerState], *, follow: bool, since: datetime | None, polls_per_query: int = 1
) -> Iterator[str]:
    """Yield the log that a supervisor has stored. With `follow`, query `state` once every `polls_per_query` polls."""
    tail = LogTail(Path(unit.run_dir, LOG))
    if since is not None:
        started = state().started_at
        begun = datetime.fromisoformat(started) if started else None
        yield from lines_since(tail() if follow else tail.to_end(), since, started=begun, zone=None)
    while follow and state().status in {Status.RUNNING, Status.PENDING}:
        for _ in range(polls_per_query):
            yield from tail()
            time.sleep(_INTERVAL)
    yield from tail.to_end()


def saved_log(unit: Unit, since: datetime | None) -> Iterator[str]:
    """Yield the saved log of a removed server."""
    lines = LogTail(Path(unit.run_dir, LOG)).to_end()
    return iter(lines) if since is None else lines_since(lines, since, started=None, zone=UTC)


def lines_since(
    lines: Iterable[str], since: datetime, *, started: datetime | None, zone: tzinfo | None
) -> Iterator[str]:
    """Yield the lines written at or after `since`, according to the timestamps in the log.

    Timestamps are in `zone`; None means the time zone of this host. All lines are yielded if the server started later:
    its first lines have no timestamp.
    """
    from orchestrator.engine.log import written_since  # noqa: PLC0415 - few commands need it

    if started is not None and started >= since:
        return iter(lines)
    return written_since(lines, since.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S"))
