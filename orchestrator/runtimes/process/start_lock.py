"""The lock on a handover: from the decision to start a server until its record exists.

The command that starts the server holds it, and so does the supervisor, which inherits it. If the command is killed in
between, the lock stays, so the next command waits for the record instead of finding no server.
"""

from io import FileIO
from pathlib import Path
from typing import Final

from orchestrator.core.locks import hold, is_held
from orchestrator.core.polling import poll_until

_FILE: Final = ".start.lock"
_WITHIN: Final = 10.0  # maximum seconds for a handover, which takes less than one; after it, others continue
_POLL: Final = 0.02


def handing_over(folder: Path) -> FileIO:
    """Hold the lock on starts of a name; `folder` holds its runs. The supervisor inherits the file."""
    return hold(folder / _FILE, wait=True)


def await_handover(folder: Path) -> None:
    """Wait until a start of that name in progress has written its record; return at once if there is none."""
    if is_held(lock := folder / _FILE):
        poll_until(bool, lambda: not is_held(lock), within=_WITHIN, pause=_POLL)
