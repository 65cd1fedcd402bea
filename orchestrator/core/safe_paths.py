"""Validated names, paths and digests from external sources, and safe file operations with them.

Hubs, indexes, lockfiles and remote hosts supply file names. Each type here is a string that is checked on creation, so
a value of the type is safe to use. `join` and `remove_tree` never leave the directory they are given.

Standard library only, and Python 3.8: `checkpoints/remote_download.py` sends this module to remote hosts.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

_SHOWN = 80  # characters of an invalid value in a message
_MAX_SIZE = (1 << 63) - 1  # bytes of a file (off_t)
_COMMIT = re.compile("[0-9a-f]{40}")
_CONTENT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
# As huggingface_hub.utils.validate_repo_id: one or two names of at most 96 characters, without `--` and `..`.
_REPOSITORY = re.compile(
    r"(?:[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?/)?[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII
)
# github.com/distribution/reference v0.6.0: regexp.go, and from normalize.go the rule that distinguishes a host from a
# folder.
_HOST_PART = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[A-Fa-f0-9:]+\])(?::[0-9]+)?"
_FOLDER = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?=[^/]*[.:A-Z]|localhost/)(?P<host>{_HOST})/)?(?P<path>{_FOLDER}(?:/{_FOLDER})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_MAX_IMAGE = 255  # characters of host and path


class UnsafeValueError(ValueError):
    """An external value is invalid, or leads out of its directory."""


def display(value: object) -> str:
    """Return the beginning of an untrusted value for a message, with control characters escaped."""
    text = ascii(value)[1:-1] if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


class CommitHash(str):
    """A git commit: 40 hexadecimal digits, lower case."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Parse a commit. Raises UnsafeValueError."""
        return super().__new__(cls, _match(_COMMIT, value, "a commit (40 hexadecimal digits)"))


class ContentHash(str):
    """The digest of a file on a hub: a sha256 (git-lfs) or git's sha1, in lower-case hexadecimal digits."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Parse the digest of a file. Raises UnsafeValueError."""
        return super().__new__(cls, _match(_CONTENT, value, "a sha1 or sha256 (40 or 64 hexadecimal digits)"))


class RepositoryId(str):
    """A repository on the hub: `org/name`, or `name` for one of the first models."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Parse the id of a repository. Raises UnsafeValueError."""
        text = _match(_REPOSITORY, value, "a repository: write `org/name`")
        if "--" in text or ".." in text or text.endswith(".git"):
            raise UnsafeValueError(f"`{display(text)}` is not a repository: write `org/name`")
        return super().__new__(cls, text)


class ImageReference(str):
    """The name of an image as docker reads it: `[HOST[:PORT]/]PATH[:TAG][@sha256:…]`, the path in lower case."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Parse a reference. Raises UnsafeValueError."""
        return super().__new__(cls, cls._parse(value).string)

    @property
    def parts(self) -> dict[str, str | None]:
        """The values of `host`, `path`, `tag` and `digest`; None for a missing part."""
        return self._parse(self).groupdict()

    @staticmethod
    def _parse(value: object) -> re.Match[str]:
        match = _IMAGE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match.end("path") > _MAX_IMAGE:
            form = "`[HOST[:PORT]/]path[:TAG]`, the path in lower case"
            raise UnsafeValueError(f"`{display(value)}` is not the name of an image: write {form}")
        return match


class RelativePath(str):
    """A path below some directory: normalized, printable, without `..`, at most 1024 bytes long."""

    __slots__ = ()
    _max_path = 1024  # bytes; PATH_MAX is 4096 for the whole path
    _max_segment = 255  # bytes, NAME_MAX
    _reserved: frozenset[str] = frozenset()

    def __new__(cls, value: object) -> Self:
        """Parse a relative path. Raises UnsafeValueError."""
        if not isinstance(value, str):
            raise UnsafeValueError(f"expected the name of a file, not `{display(value)}`")
        if reason := cls._rejection_reason(value):
            raise UnsafeValueError(f"cannot use the file name `{display(value)}`: {reason}")
        return super().__new__(cls, value)

    @classmethod
    def _rejection_reason(cls, text: str) -> str:
        """Return the reason to reject a path; empty if it is valid."""
        segments = text.split("/")
        checks = (
            (not text.isprintable() or "\\" in text, "control character or backslash in the path"),
            (text.startswith("/"), "absolute path"),
            (text.startswith("-"), "the path begins with `-`"),
            (".." in segments, "the path leads out of its directory"),
            ("" in segments or "." in segments, "the path is not normalized"),
            (any(segment != segment.strip() for segment in segments), "a name in the path begins or ends with a space"),
            (_length(text) > cls._max_path, "the path is too long"),
            (max(map(_length, segments)) > cls._max_segment, "a name in the path is too long"),
            (any(segment.lower() in cls._reserved for segment in segments), "reserved directory"),
        )
        return next((reason for is_invalid, reason in checks if is_invalid), "")


class FileName(RelativePath):
    """The name of one file or folder, without a slash."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Parse a name. Raises UnsafeValueError."""
        name = super().__new__(cls, value)
        if "/" in name:
            raise UnsafeValueError(f"cannot use the file name `{display(value)}`: it contains a slash")
        return name


class CheckpointFile(RelativePath):
    """A file of a checkpoint, outside the folders reserved for partial downloads and tools.

    Git runs programs in `.git`, so no hub may write there. The limits leave room for the names of partial downloads.
    """

    __slots__ = ()
    _max_path = 900
    _max_segment = 240
    _reserved = frozenset({".parts", ".git", ".cache"})


def _length(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _match(grammar: re.Pattern[str], value: object, kind: str) -> str:
    if not isinstance(value, str) or not grammar.fullmatch(value):
        raise UnsafeValueError(f"`{display(value)}` is not {kind}")
    return value


def byte_count(value: object) -> int:
    """Parse the size of a file in bytes. Raises UnsafeValueError unless it is an integer from 0 to 2^63-1."""
    if type(value) is not int or not 0 <= value <= _MAX_SIZE:
        raise UnsafeValueError(f"`{display(value)}` is not a size in bytes")
    return value


def join(root: Path, relative: RelativePath) -> Path:
    """Return the path of a file below `root`. The file itself may be a link.

    Raises UnsafeValueError if a link among its folders leads out of `root`.
    """
    path = root / relative
    if "/" in relative and not _is_inside(path.parent, root, strictly=False):
        raise UnsafeValueError(f"cannot use `{path}`: a link leads out of `{root}`")
    return path


def path_named_in(folder: Path, value: object) -> Path:
    """Return a path that the user chose, relative to `folder`; it may lead anywhere.

    Only for paths that the user wrote, and for reading. Raises UnsafeValueError unless the value is printable text.
    """
    if not isinstance(value, str) or not value.isprintable():
        raise UnsafeValueError(f"`{display(value)}` is not a path")
    return folder / value


def remove_tree(path: Path, *, within: Path, ignore_errors: bool = True) -> None:
    """Remove a directory with its contents, if it exists.

    Raises UnsafeValueError unless the directory is below `within` with links resolved, and OSError if `ignore_errors`
    is false.
    """
    if path.name in {"", ".."} or not _is_inside(path, within, strictly=True):
        raise UnsafeValueError(f"cannot remove `{path}`: it is not inside `{within}`")
    shutil.rmtree(path, ignore_errors=ignore_errors)


def _is_inside(path: Path, root: Path, *, strictly: bool) -> bool:
    """Return whether a path is below `root`, or equal to it unless `strictly`; links among its folders are resolved."""
    top = os.path.realpath(root)
    inner = str(Path(os.path.realpath(path.parent), path.name)) if strictly else os.path.realpath(path)
    return inner.startswith(top.rstrip(os.sep) + os.sep) or (inner == top and not strictly)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to an OSError without a file name, for example on a full disk; convert shutil.Error to OSError."""
    try:
        yield
    except shutil.Error as error:
        _, target, reason = error.args[0][0]
        raise OSError(errno.EIO, f"cannot copy: {reason}", str(target)) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class NamedFile(io.FileIO):
    """A file whose write errors contain its name, also when a buffer around it is flushed."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any bytes-like object
        """Write without buffering. Raises OSError that names the file."""
        with naming(self.name):
            return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file. Raises OSError that names the file."""
        with naming(self.name):
            return super().truncate(size)


def open_to_append(path: Path) -> IO[bytes]:
    """Open a regular file for reading, and for writing at its end. Raises OSError, also for a link or a FIFO."""
    extra_flags = os.O_NOFOLLOW | os.O_NONBLOCK
    file = NamedFile(path, "a+b", opener=lambda name, flags: os.open(name, flags | extra_flags, 0o666))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"`{path}` is not a file")
    return io.BufferedRandom(file)


def atomic_write(path: Path, content: str | bytes | Iterable[bytes], *, mode: int = 0o644) -> Path:
    """Write `path` through a temporary file: a reader sees the old content or the new, and a failure keeps the old.

    The file has `mode` from the beginning, so no other user can read it in between. Raises OSError that names the file.
    """
    atomic_write_all([(path, content, mode)])
    return path


def atomic_write_all(files: Iterable[tuple[Path, str | bytes | Iterable[bytes], int]]) -> None:
    """Write a set of files, each with its mode, as `atomic_write` does. A full disk leaves all files unchanged.

    All temporary files are complete on disk before the first is renamed. Raises OSError that names the file.
    """
    complete: dict[Path, Path] = {}
    # A second Ctrl-C would otherwise interrupt the removal that follows the first.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        for path, content, mode in files:
            # The error of a failed write names no file, or the temporary file, which the user does not know.
            with _naming_only(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = complete[path] = path.with_name(f".{path.name}.{os.getpid()}")
                _write_durably(temporary, content, mode)
        for path, temporary in complete.items():
            with _naming_only(path):
                temporary.replace(path)
    finally:
        for temporary in complete.values():
            temporary.unlink(missing_ok=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _write_durably(path: Path, content: str | bytes | Iterable[bytes], mode: int) -> None:
    content = content.encode() if isinstance(content, str) else content
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as stream:
        stream.writelines((content,) if isinstance(content, bytes) else content)
        stream.flush()
        os.fsync(stream.fileno())
    path.chmod(mode)  # restores bits that the umask removed


@contextmanager
def _naming_only(path: Path) -> Iterator[None]:
    """Make every OSError name `path`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def move(source: Path, target: Path) -> Path:
    """Rename a file, directory or link atomically, replacing `target`; return `target`. Raises OSError."""
    return source.replace(target)
