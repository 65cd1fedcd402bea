"""Logs of servers: followed, read from the run directory, and saved there at a stop."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError
from orchestrator.core.logs.lines import Lines, LogTail
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import LOG, Runtime, Status, Unit

_INTERVAL: Final = 0.5  # seconds between two reads of a log


def followed_log(runtime: Runtime, unit: Unit) -> Iterator[str]:
    """Yield the lines of `Runtime.tail` until the unit has ended, across its restarts."""
    tail = runtime.tail(unit)
    while True:
        runs = runtime.state(unit).status in {Status.PENDING, Status.RUNNING}
        yield from tail()
        if not runs:
            return
        time.sleep(_INTERVAL)


def saved_log(unit: Unit) -> Lines:
    """Return the log in the run directory, without secrets."""
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
