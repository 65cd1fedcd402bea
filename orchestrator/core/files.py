"""Files that are written whole or not at all, and locks between processes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core.console import Progress


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o644) -> Path:
    """Write `path` through a file beside it: a reader sees the old content or the new, and a failure leaves the old.

    No one whom `mode` shuts out can read it at any moment. Raises OSError.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.chmod(mode)  # whatever the umask took away
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Be the only process that holds the lock at `path`, waiting for another one and saying so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.update(f"waiting for another command that makes `{path.stem.lstrip('.')}`")
            fcntl.flock(lock, fcntl.LOCK_EX)
            progress.done()
        yield
