"""Files written whole or not at all, and files and folders that are this user's alone.

To write or to remove a file is a step that cannot be undone: from then on SIGPIPE does not end the command. To write a
cache is none, as the next command would make it again.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
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

__all__ = ["move", "naming", "open_to_append", "remove_tree"]  # with what is defined here, the face of this module

_MAX_UNPACKED: Final = 2 << 30  # bytes; the wheel of sglang has 30 MB
_MOST: Final = 4 << 20  # bytes of a record; what is longer is none of ours


def atomic_write(path: Path, content: str | bytes, *, mode: int = 0o644) -> Path:
    """Write a file whole or not at all, see `safe_paths`; SIGPIPE no longer ends the command. Raises OSError."""
    ignore_sigpipe()
    return safe_paths.atomic_write(path, content, mode=mode)


def atomic_write_all(files: Iterable[tuple[Path, str | bytes, int]]) -> None:
    """Write a set of files, each with its mode: all or none. SIGPIPE no longer ends the command. Raises OSError."""
    ignore_sigpipe()
    safe_paths.atomic_write_all(files)


def write_cache(path: Path, content: str | bytes) -> Path:
    """Write a file that the next command would make again; SIGPIPE may still end this one. Raises OSError."""
    return safe_paths.atomic_write(path, content)


def overwrite(path: Path, old: bytes, new: bytes) -> bool:
    """Write `new` over the first `old` of a file, which is as long: a full disk takes it. Return whether it was there.

    Raises OSError.
    """
    if len(old) != len(new):
        raise ValueError("only as many bytes as there are")
    ignore_sigpipe()
    with naming(path), os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
        at = file.read().find(old)
        if at >= 0:
            file.seek(at)
            file.write(new)
    return at >= 0


def write_sparse(path: Path, content: bytes, *, size: int, time_ns: int) -> None:
    """Write a new sparse file of `size` bytes that begins with `content`. Raises OSError, also where it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("xb") as file:
        file.write(content)
        file.truncate(size)
    os.utime(path, ns=(time_ns, time_ns))


def open_new(path: Path) -> BinaryIO:
    """Open a file to be written from its beginning. Raises OSError, also for a link."""
    file = NamedFile(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
    return BufferedWriter(file)


def open_unbuffered(path: Path, opener: Callable[[str, int], int]) -> FileIO:
    """Open a file to be written at its end, at once, by a descriptor of the `opener`. Raises OSError."""
    return NamedFile(path, "ab", opener=opener)


def unpack(archive: ZipFile, names: Iterable[str], folder: Path) -> None:
    """Unpack files of an archive below `folder`. Raises UnsafeValueError for a hostile or too large one."""
    wanted = [archive.getinfo(RelativePath(name)) for name in names if not name.endswith("/")]
    if sum(member.file_size for member in wanted) > _MAX_UNPACKED:
        raise UnsafeValueError(f"it unpacks to more than {_MAX_UNPACKED} bytes")
    with naming(folder):
        archive.extractall(folder, wanted)


def remove_file(path: Path) -> None:
    """Remove a file, or a link itself; nothing happens where there is none. Raises OSError."""
    ignore_sigpipe()
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove an empty directory. Raises OSError."""
    ignore_sigpipe()
    path.rmdir()


def cut(path: Path, size: int) -> None:
    """Keep the first `size` bytes of a file. Raises OSError."""
    os.truncate(path, size)


def link(path: Path, target: Path) -> None:
    """Make `path` a link to `target`. Raises OSError where something is in the way."""
    path.symlink_to(target)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its times and its mode. Raises OSError."""
    shutil.copy2(source, target)


def copy_tree(source: Path, target: Path, *, linked: bool = False) -> None:
    """Copy a directory into one that may be there; `linked` gives files a second name where the disk can do that.

    Raises OSError.
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


def read_private(path: Path) -> bytes:
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


def replace_folder(fresh: Path, target: Path) -> None:
    """Put the folder `fresh` in the place of `target`, beside it; a folder there is moved away and then removed."""
    if target.is_dir():
        old = fresh.with_name(f"{fresh.name}.old")
        move(target, old)
        remove_tree(old, within=target.parent)
    move(fresh, target)


def open_private(path: Path) -> BinaryIO:
    """The same, opened."""
    return open(_open_own(path, os.O_RDONLY), "rb")


def open_lock(path: Path) -> FileIO:
    """Open a lock file, made where it is missing; nothing is truncated. Raises OSError as `read_private` does.

    What was locked on a disk that has become read-only can be locked there once more.
    """
    try:
        lock = _open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        lock = _open_own(path, os.O_RDONLY)
    return FileIO(lock)


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
