"""The lock on a handover: from the decision to start a server until its record tells of it.

Its holders are the command that starts the server and, by inheritance, the supervisor it starts: a command that is
killed in between frees nothing, so whoever looks next waits for the record instead of finding no server.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from orchestrator.core.files import open_lock
from orchestrator.core.polling import look_until

_FILE: Final = ".start.lock"
_WITHIN: Final = 10.0  # seconds a handover may take before others go on with what is there; it takes less than one
_POLL: Final = 0.02


@contextmanager
def handing_over(folder: Path) -> Iterator[int]:
    """Be the only start of a name, whose runs `folder` holds; the descriptor is for the supervisor to inherit."""
    lock = open_lock(folder / _FILE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def await_handover(folder: Path) -> None:
    """Let a start of that name that is under way write its record. Where there is none this takes no time."""
    with suppress(OSError):  # no lock, no start
        lock = os.open(folder / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not _free(lock):
                look_until(bool, lambda: _free(lock), within=_WITHIN, pause=_POLL)
        finally:
            os.close(lock)


def _free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
