"""Standard output and standard error: a line that cannot be written is dropped, and the work goes on.

`take_streams` puts a file of this module below `sys.stdout` and `sys.stderr`, so that the output of libraries, of the
option parser and of Python itself goes the same way as that of `write`. A full disk, a closed descriptor or a reader
that has ended never raises an error there; `lost_output` tells what was lost on standard output.

As SIGPIPE would, a reader that has ended ends the command, with 141, until `ignore_sigpipe` is called: before the first
step that cannot be undone. Standard error counts only where it is the same pipe as standard output. These call it:

- `files`, before a file is written or removed, but for caches;
- `subprocesses`, before a program whose output is followed: it builds, pulls, installs or measures;
- what changes something else first: a download, a start, a stop, a name for an image, a cache that is removed, and
  `deploy logprobs`, whose answers take minutes.
"""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, ClassVar, Final, TextIO

if TYPE_CHECKING:
    import threading

    from _typeshed import ReadableBuffer

IGNORE_SIGPIPE: Final = "DEPLOY_IGNORE_SIGPIPE"  # set for a `deploy` that another one runs after such a step
_NAMES: Final = ("stdin", "stdout", "stderr")
_OUT: Final = 1


class _State:
    """What has happened to the streams of this process."""

    lost: str = ""  # why something was not written to standard output
    sigpipe_ignored: bool = False
    wait: float | None = None  # seconds for a reader that lives and does not read; None: as long as that lasts
    waiting: ClassVar[dict[int, "threading.Thread"]] = {}  # what writes, or waits to, by descriptor


def write(stream: TextIO, text: str) -> None:
    """Write a text at once. The only function that writes to standard output or standard error."""
    stream.write(text)
    stream.flush()


def take_streams() -> None:
    """Let no output of this process fail. Called once, before anything else.

    A standard descriptor that is closed is opened on /dev/null: the next file or socket would get its number, and
    messages would be written into it. What replaces `sys.stdout` (a test's capture) is left alone.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - it gets the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    for number in (1, 2):
        name = _NAMES[number]
        old: TextIO | None = getattr(sys, name)
        if old is None or _number(old) == number:
            new = _text(number, old, usable=old is not None and number not in closed)
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
    if os.environ.pop(IGNORE_SIGPIPE, ""):
        ignore_sigpipe()


def ignore_sigpipe() -> None:
    """From here on a reader that has ended does not end the command: something is changed that cannot be undone."""
    _State.sigpipe_ignored = True


def drop_when_stalled() -> None:
    """From here on drop what a reader does not read within a second: a terminal stopped by Ctrl-S, a hung ssh.

    Only `deploy watch` calls this: it has to act although nobody reads.
    """
    _State.wait = 1.0


def lost_output() -> str:
    """Return why something could not be written to standard output; empty where all was written."""
    return _State.lost


class _Descriptor(io.RawIOBase):
    """Standard output or standard error; what cannot be written there is dropped."""

    def __init__(self, number: int, *, usable: bool) -> None:
        self.name = f"<{_NAMES[number]}>"
        self._number = number
        self._usable = usable
        self._inside_line = False  # a write was cut off in the middle of a line

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        """Write all of it, or as much as can be written. Raises ReaderGone, see the module."""
        text = bytes(data)
        rest = b"\n" + text if self._inside_line else text
        try:
            while rest:
                written = _write_some(self._number if self._usable else -1, rest)  # EBADF: it was closed at the start
                self._inside_line = rest[written - 1 : written] != b"\n"
                rest = rest[written:]
            self._inside_line = False
        except OSError as error:
            self._lose(error)
        return len(text)

    def _lose(self, error: OSError) -> None:
        if self._number == _OUT:
            _State.lost = _State.lost or error.strerror or str(error)
        if error.errno != errno.EPIPE or _State.sigpipe_ignored or not _is_output(self._number):
            return
        import threading  # noqa: PLC0415 - most commands start without it

        from orchestrator.core.errors import ReaderGone  # noqa: PLC0415

        if threading.current_thread() is threading.main_thread():
            _State.sigpipe_ignored = True  # once: what ends the command may have something to say
            raise ReaderGone


def _write_some(number: int, data: bytes) -> int:
    return _write_now(number, data) if _State.wait is None else _write_in_time(number, data, _State.wait)


def _write_in_time(number: int, data: bytes, seconds: float) -> int:
    """Write in a thread, which is left waiting where nobody reads; while it waits, what follows is dropped.

    Neither a terminal nor a pipe with two writers tells beforehand how much it takes without waiting. Raises OSError.
    """
    import threading  # noqa: PLC0415 - most commands start without it

    from orchestrator.core.signals import start_thread_without_signals  # noqa: PLC0415

    ended: list[int | OSError] = []

    def write_now() -> None:
        try:
            ended.append(_write_now(number, data))
        except OSError as error:
            ended.append(error)

    waiting = _State.waiting.get(number)
    if waiting is None or not waiting.is_alive():
        thread = _State.waiting[number] = threading.Thread(target=write_now, daemon=True)
        start_thread_without_signals(thread)
        thread.join(seconds)
    if not ended:
        raise OSError(errno.EAGAIN, "its reader does not read")
    if isinstance(ended[0], OSError):
        raise ended[0]
    return ended[0]


def _write_now(number: int, data: bytes) -> int:
    """Raises OSError."""
    while True:
        try:
            return os.write(number, data)
        except BlockingIOError:  # another process has made this pipe or terminal non-blocking
            import select  # noqa: PLC0415

            select.select([], [number], [])


def _is_output(number: int) -> bool:
    """Whether what is written there goes where standard output goes."""
    try:
        return number == _OUT or os.path.samestat(os.fstat(number), os.fstat(_OUT))
    except OSError:
        return False


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _number(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _text(number: int, old: TextIO | None, *, usable: bool) -> io.TextIOWrapper:
    """A text stream with the encoding of the old one; what that cannot express is escaped."""
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", None)
    # Without a buffer, as Python's own with `-u`: a text that was not written would be tried again, and fail, at exit.
    return io.TextIOWrapper(
        _Descriptor(number, usable=usable),
        encoding=encoding,
        errors="backslashreplace" if errors in {None, "strict"} else errors,
        write_through=True,
    )
