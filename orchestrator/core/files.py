"""Files written whole or not at all, files and folders that are this user's alone, and locks between processes."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from orchestrator.core.console import Progress
from orchestrator.core.safe_paths import write_whole

__all__ = ["locked", "open_lines", "open_lock", "open_own", "private_folder", "read_file", "read_own", "write_sparse"]
__all__ += ["write_whole"]

_MOST: Final = 4 << 20  # bytes of a record; what is longer is none of ours


def write_sparse(path: Path, content: bytes, *, size: int, time_ns: int) -> None:
    """Write a new sparse file of `size` bytes that begins with `content`. Raises OSError, also where it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.truncate(size)
    os.utime(path, ns=(time_ns, time_ns))


def private_folder(path: Path) -> Path:
    """A directory of this user's that nobody else may look into, made where it is missing; its parent has to be there.

    Raises PermissionError for one of another user, OSError for what is no directory.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise
        _require_own(status, path)
        if status.st_mode & 0o077 and not path.is_symlink():
            path.chmod(0o700)
    return path


def read_own(path: Path) -> bytes:
    """A file of this user's, at once: neither a link nor what could make a reader wait. Raises OSError for others."""
    return _read(_open_own(path, os.O_RDONLY), path, most=_MOST)


def read_file(path: Path, *, most: int) -> bytes:
    """Anybody's file of at most so many bytes, at once. Raises OSError for a longer one, and for what is no file."""
    return _read(_open_file(path), path, most=most)


def open_lines(path: Path, *, longest: int) -> Iterator[str]:
    """The lines of anybody's file, with their ends. Raises OSError for a longer one, and for what is no file."""
    with open(_open_file(path), encoding="utf-8", errors="replace", newline="") as stream:
        while line := stream.readline(longest + 1):
            if len(line) > longest:
                raise OSError(errno.EFBIG, "a line without end", str(path))
            yield line


def _open_file(path: Path) -> int:
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_file(os.fstat(number), path)
    except OSError:
        os.close(number)
        raise
    return number


def _read(number: int, path: Path, *, most: int) -> bytes:
    with open(number, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def open_own(path: Path) -> BinaryIO:
    """The same, opened."""
    return open(_open_own(path, os.O_RDONLY), "rb")


def open_lock(path: Path) -> int:
    """A descriptor of a lock file, made where it is missing; nothing is truncated. Raises OSError as `read_own` does.

    What was locked on a disk that has become read-only can be locked there once more.
    """
    try:
        return _open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return _open_own(path, os.O_RDONLY)


def _open_own(path: Path, flags: int) -> int:
    number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(number)
        _require_own(status, path)
        _require_file(status, path)
    except OSError:
        os.close(number)
        raise
    return number


def _require_own(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))


def _require_file(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Be the only process that holds the lock at `path`, waiting for another one and saying so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open_lock(path)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.update(f"waiting for another command that makes `{path.stem.lstrip('.')}`")
            fcntl.flock(lock, fcntl.LOCK_EX)
            progress.done()
        yield
    finally:
        os.close(lock)
