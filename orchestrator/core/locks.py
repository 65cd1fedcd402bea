"""Locks between processes of one host: `flock` on a file with the holder's pid, released by the kernel."""

import fcntl
import os
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from orchestrator.core.console import Progress
from orchestrator.core.files import open_lock, open_private

_PID_WIDTH: Final = 10  # characters; with a fixed width the file needs no truncation
_TRIES: Final = 3  # `is_held` in another process holds the lock for microseconds
_BETWEEN: Final = 0.02  # seconds


class LockHeldError(Exception):
    """Another process holds the lock; `holder` is its pid, or `unknown`."""

    def __init__(self, holder: str) -> None:
        """Create an error for the pid in `holder`, "" if it is unknown."""
        self.holder = holder or "unknown"
        super().__init__(f"held by pid {self.holder}")


def hold(path: Path, *, wait: bool = False) -> FileIO:
    """Take the exclusive lock at `path`. Closing the returned file, and all its copies in children, releases it.

    Raises LockHeldError if another process holds the lock and `wait` is false, OSError if `path` is not a file of
    this user.
    """
    lock = open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX) if wait else _try_acquire(lock)
        with suppress(OSError):  # a full disk: the pid only serves messages
            os.pwrite(lock.fileno(), str(os.getpid()).ljust(_PID_WIDTH).encode(), 0)
    except BaseException:
        lock.close()
        raise
    return lock


def file_lock(path: Path, progress: Progress) -> FileIO:
    """Take the exclusive lock at `path`, creating its directory; show a wait for another holder in `progress`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return hold(path)
    except LockHeldError:
        progress.update(f"waiting for another command that makes `{path.stem.lstrip('.')}`")
        lock = hold(path, wait=True)
        progress.done()
        return lock


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock at `path`, without creating the file."""
    try:
        with open_private(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _try_acquire(lock: FileIO) -> None:
    for _ in range(_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_BETWEEN)
        else:
            return
    raise LockHeldError(os.pread(lock.fileno(), _PID_WIDTH, 0).decode(errors="replace").strip("\0 \n"))
