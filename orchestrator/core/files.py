"""Atomic writes, and private files and directories of this user.

Writing or removing a file cannot be undone, so SIGPIPE no longer ends the command afterwards. A cache is different:
the next command would write it again.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZipFile

from orchestrator.core import safe_paths
from orchestrator.core.safe_paths import (
    NamedFile,
    RelativePath,
    UnsafeValueError,
    move,
    naming,
    open_to_append,
    remove_tree,
)
from orchestrator.core.streams import ignore_sigpipe

__all__ = ["move", "naming", "open_to_append", "remove_tree"]  # re-exported, in addition to this module's functions

_MAX_UNPACKED: Final = 2 << 30  # bytes; the wheel of sglang has 30 MB
_MAX_RECORD: Final = 4 << 20  # bytes of a record; no record of this tool is longer


def atomic_write(path: Path, content: str | bytes | Iterable[bytes], *, mode: int = 0o644) -> Path:
    """Write a file completely or not at all, see `safe_paths`; SIGPIPE no longer ends the command. Raises OSError."""
    ignore_sigpipe()
    return safe_paths.atomic_write(path, content, mode=mode)


def atomic_write_all(files: Iterable[tuple[Path, str | bytes, int]]) -> None:
    """Write a set of files, each with its mode: all or none. SIGPIPE no longer ends the command. Raises OSError."""
    ignore_sigpipe()
    safe_paths.atomic_write_all(files)


def write_cache(path: Path, content: str | bytes) -> Path:
    """Write a file that the next command would write again; SIGPIPE may still end this one. Raises OSError."""
    return safe_paths.atomic_write(path, content)


def overwrite(path: Path, old: bytes, new: bytes) -> bool:
    """Replace the first `old` in a file in place, which works on a full disk; return whether `old` was found.

    Raises OSError, and ValueError if `new` has another length.
    """
    if len(old) != len(new):
        raise ValueError("the new bytes have another length")
    ignore_sigpipe()
    with naming(path), os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
        at = file.read().find(old)
        if at >= 0:
            file.seek(at)
            file.write(new)
    return at >= 0


def write_sparse(path: Path, content: bytes, *, size: int, time_ns: int) -> None:
    """Write a new sparse file of `size` bytes that begins with `content`. Raises OSError, also if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("xb") as file:
        file.write(content)
        file.truncate(size)
    os.utime(path, ns=(time_ns, time_ns))


def write_stamped(path: Path, content: bytes, *, mode: int, time_ns: int) -> None:
    """Write a new file with a given time, in directories that only this user can read. Raises OSError if it exists."""
    for folder in reversed([parent for parent in path.parents if not parent.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with naming(path), os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(content)
    os.utime(path, ns=(time_ns, time_ns))


def add_missing(fresh: Path, target: Path) -> int:
    """Move the files that `target` lacks from `fresh`, on the same disk; return their number. Raises OSError."""
    ignore_sigpipe()
    if not os.path.lexists(target):
        count = sum(len(names) for _, _, names in os.walk(fresh)) if fresh.is_dir() else 1
        move(fresh, target)
        return count
    if fresh.is_dir() and target.is_dir():
        return sum(add_missing(path, target / path.name) for path in sorted(fresh.iterdir()))
    return 0


def open_new(path: Path) -> BinaryIO:
    """Open a file for writing from its beginning, truncated. Raises OSError, also for a link."""
    file = NamedFile(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
    return BufferedWriter(file)


def open_unbuffered(path: Path) -> FileIO:
    """Open a file that only this user can read for unbuffered writing at its end. Raises OSError."""
    return NamedFile(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def unpack(archive: ZipFile, names: Iterable[str], folder: Path) -> None:
    """Unpack files of an archive below `folder`. Raises UnsafeValueError for an unsafe path or more than 2 GiB."""
    members = [archive.getinfo(RelativePath(name)) for name in names if not name.endswith("/")]
    if sum(member.file_size for member in members) > _MAX_UNPACKED:
        raise UnsafeValueError(f"its unpacked size exceeds {_MAX_UNPACKED} bytes")
    with naming(folder):
        archive.extractall(folder, members)


def remove_file(path: Path) -> None:
    """Remove a file, or a link itself, if it exists. Raises OSError."""
    ignore_sigpipe()
    path.unlink(missing_ok=True)


def cut(path: Path, size: int) -> None:
    """Truncate a file to its first `size` bytes. Raises OSError."""
    os.truncate(path, size)


def link(path: Path, target: Path) -> None:
    """Create a symbolic link at `path` to `target`. Raises OSError, also if `path` exists."""
    path.symlink_to(target)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its times and mode. Raises OSError."""
    shutil.copy2(source, target)


def copy_tree(source: Path, target: Path, *, linked: bool = False) -> None:
    """Copy a directory into one that may exist. Raises OSError.

    With `linked`, files are hard links to the originals, or copies if the file system cannot link them.
    """
    copy = _link_or_copy if linked else shutil.copy2
    with naming(target):
        shutil.copytree(source, target, copy_function=copy, dirs_exist_ok=True, ignore_dangling_symlinks=linked)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)


def private_dir(path: Path) -> Path:
    """Create a directory that only this user can read, or make an existing one private; return its path.

    Its parent must exist. Raises PermissionError if it belongs to another user, OSError if it is not a directory.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise
        _require_owner(status, path)
        if status.st_mode & 0o077 and not path.is_symlink():
            path.chmod(0o700)
    return path


def read_private(path: Path) -> bytes:
    """Read a file of this user. Raises OSError for another user's file, a link, a FIFO, a device, or over 4 MiB."""
    return _read(_open_file(path, private=True), path, max_bytes=_MAX_RECORD)


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """Read a file of any user. Raises OSError if it has more than `max_bytes` bytes or is not a regular file."""
    return _read(_open_file(path), path, max_bytes=max_bytes)


def open_lines(path: Path, *, max_characters: int) -> Iterator[str]:
    """Yield the lines of a file of any user, with their line ends.

    Raises OSError if a line has more than `max_characters` characters, or if `path` is not a regular file.
    """
    with open(_open_file(path), encoding="utf-8", errors="replace", newline="") as stream:
        while line := stream.readline(max_characters + 1):
            if len(line) > max_characters:
                raise OSError(errno.EFBIG, "unterminated line", str(path))
            yield line


def _read(number: int, path: Path, *, max_bytes: int) -> bytes:
    with open(number, "rb") as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def replace_folder(fresh: Path, target: Path) -> None:
    """Move the directory `fresh` to `target`, in the same parent directory; an old `target` is removed afterwards."""
    if target.is_dir():
        old = fresh.with_name(f"{fresh.name}.old")
        move(target, old)
        remove_tree(old, within=target.parent)
    move(fresh, target)


def open_private(path: Path) -> BinaryIO:
    """Open a file of this user for reading. Raises OSError for another user's file, a link, a FIFO or a device."""
    return open(_open_file(path, private=True), "rb")


def open_lock(path: Path) -> FileIO:
    """Open a lock file, created if missing and never truncated. Raises OSError as `open_private` does.

    On a disk that has become read-only, an existing lock file is opened for reading, which is enough for a lock.
    """
    try:
        lock = _open_file(path, os.O_RDWR | os.O_CREAT, private=True)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        lock = _open_file(path, private=True)
    return FileIO(lock)


def _open_file(path: Path, flags: int = os.O_RDONLY, *, private: bool = False) -> int:
    """Open a regular file; a `private` one must belong to this user and must not be a link."""
    flags |= os.O_NOFOLLOW if private else 0
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(number)
        if private:
            _require_owner(status, path)
        _require_file(status, path)
    except OSError:
        os.close(number)
        raise
    return number


def _require_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "owned by another user", str(path))


def _require_file(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file", str(path))
