"""The lock on a handover: from the decision to start a server until its record tells of it.

Its holders are the command that starts the server and, by inheritance, the supervisor it starts: a command that is
killed in between frees nothing, so whoever looks next waits for the record instead of finding no server.
"""

from io import FileIO
from pathlib import Path
from typing import Final

from orchestrator.core.locks import hold, is_held
from orchestrator.core.polling import poll_until

_FILE: Final = ".start.lock"
_WITHIN: Final = 10.0  # seconds a handover may take before others go on with what is there; it takes less than one
_POLL: Final = 0.02


def handing_over(folder: Path) -> FileIO:
    """Be the only start of a name, whose runs `folder` holds; the supervisor inherits the file."""
    return hold(folder / _FILE, wait=True)


def await_handover(folder: Path) -> None:
    """Let a start of that name that is under way write its record. Where there is none this takes no time."""
    if is_held(lock := folder / _FILE):
        poll_until(bool, lambda: not is_held(lock), within=_WITHIN, pause=_POLL)
