"""Standard output and standard error: output that cannot be written is dropped, and the command continues.

`install_streams` replaces the files below `sys.stdout` and `sys.stderr`, so that the output of libraries, of the option
parser and of Python itself is handled like that of `write`. A full disk, a closed descriptor or a reader that has
exited raises no OSError; `output_error` returns the reason why standard output is incomplete.

If the reader of standard output exits, the command ends with 141, as with SIGPIPE, until `ignore_sigpipe` is called
before the first step that cannot be undone. Standard error counts only if it is the same pipe. The callers are:

- `files`, before writing or removing a file, except for caches;
- `subprocesses`, before running a program that builds, pulls, installs or measures;
- functions that change anything else: a download, a start, a stop, a new image tag, the removal of a cache, and
  `deploy logprobs`, whose measurements take minutes.
"""

import errno
import io
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, ClassVar, Final, TextIO

from orchestrator.core.errors import ReaderGone
from orchestrator.core.signals import start_thread_without_signals

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IGNORE_SIGPIPE: Final = "DEPLOY_IGNORE_SIGPIPE"  # set for a `deploy` that another one starts after such a step
_NAMES: Final = ("stdin", "stdout", "stderr")
_OUT: Final = 1


class _State:
    """The state of the streams of this process."""

    lost: str = ""  # the reason why standard output is incomplete
    sigpipe_ignored: bool = False
    wait: float | None = None  # seconds to wait for a reader that does not read; None: without limit
    waiting: ClassVar[dict[int, threading.Thread]] = {}  # threads that write or wait to write, by descriptor


def write(stream: TextIO, text: str) -> None:
    """Write text and flush it. The only function that writes to standard output or standard error."""
    stream.write(text)
    stream.flush()


def install_streams() -> None:
    """Install the streams of this module, so that no output fails. Call this once, before anything else.

    Closed standard descriptors are opened on /dev/null; otherwise the next file or socket would get their number, and
    messages would be written into it. A replacement of `sys.stdout` (a test's capture) is not changed.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - it gets the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process exits
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
    """From now on, continue if the reader of standard output exits: the next step cannot be undone."""
    _State.sigpipe_ignored = True


def drop_when_stalled() -> None:
    """From now on, drop output that nobody reads within a second (a terminal stopped by Ctrl-S, a hung ssh).

    Only `deploy watch` calls this, because it must act even if nobody reads its output.
    """
    _State.wait = 1.0


def output_error() -> str:
    """Return the reason why standard output is incomplete; empty if everything was written."""
    return _State.lost


class _Descriptor(io.RawIOBase):
    """Standard output or standard error, dropping output that cannot be written."""

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
        """Write as much as possible. Raises ReaderGone if the reader exited before `ignore_sigpipe`."""
        text = bytes(data)
        rest = b"\n" + text if self._inside_line else text
        try:
            while rest:
                number = self._number if self._usable else -1  # EBADF: closed from the start
                written = _write_now(number, rest) if _State.wait is None else _write_in_time(number, rest, _State.wait)
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
        if threading.current_thread() is threading.main_thread():
            _State.sigpipe_ignored = True  # raise only once: cleanup may print as well
            raise ReaderGone


def _write_in_time(number: int, data: bytes, seconds: float) -> int:
    """Write in a thread, which keeps waiting if nobody reads; output in the meantime is dropped. Raises OSError.

    A thread is needed because neither a terminal nor a pipe with two writers reports how much it accepts at once.
    """
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
        raise OSError(errno.EAGAIN, "the reader is stalled")
    if isinstance(ended[0], OSError):
        raise ended[0]
    return ended[0]


def _write_now(number: int, data: bytes) -> int:
    while True:
        try:
            return os.write(number, data)
        except BlockingIOError:  # another process made this pipe or terminal non-blocking
            select.select([], [number], [])


def _is_output(number: int) -> bool:
    """Return whether a descriptor leads to the same file as standard output."""
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
    """Return a text stream with the encoding of the old one, which escapes characters outside that encoding."""
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", None)
    # Unbuffered, as with `python -u`: Python would otherwise retry failed output at exit, and fail again.
    return io.TextIOWrapper(
        _Descriptor(number, usable=usable),
        encoding=encoding,
        errors="backslashreplace" if errors in {None, "strict"} else errors,
        write_through=True,
    )
