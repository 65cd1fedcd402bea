"""Logs in the run directory: written by a supervisor, or saved at a stop."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError
from orchestrator.core.logs.lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import LOG, ServerState, Status, Unit

_INTERVAL: Final = 0.2  # seconds between two polls of a log


def supervised_log(
    unit: Unit, state: Callable[[], ServerState], *, follow: bool, polls_per_query: int = 1
) -> Iterator[str]:
    """Yield the log that a supervisor has stored. With `follow`, query `state` once every `polls_per_query` polls."""
    tail = LogTail(Path(unit.run_dir, LOG))
    while follow and state().status in {Status.RUNNING, Status.PENDING}:
        for _ in range(polls_per_query):
            yield from tail()
            time.sleep(_INTERVAL)
    yield from tail.to_end()


def saved_log(unit: Unit) -> Iterator[str]:
    """Return the saved log of a removed server."""
    return LogTail(Path(unit.run_dir, LOG)).to_end()


def keep_log(home: Home, unit: Unit, save: Callable[[Path], object]) -> None:
    """Save the log in the run directory, if this home has it; an error must not prevent a stop."""
    run_dir = Path(unit.run_dir)
    if not home.holds(run_dir, unit.name):  # never write to another home's directory
        note(f"cannot save the log: `{run_dir}` is not a run directory of this home")
        return
    try:
        save(run_dir)
    except (DeployError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        warn(f"cannot save the log: {reason or error}: `{run_dir}`")
