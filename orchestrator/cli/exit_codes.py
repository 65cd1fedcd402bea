"""The exit of a command: by a signal, or with the exit code of its error."""

import errno
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypeAlias, TypeGuard

from orchestrator.core.console import show_error
from orchestrator.core.errors import DeployError, HostError, Interrupted, OutputError
from orchestrator.core.safe_paths import UnsafeValueError
from orchestrator.core.secrets import redact
from orchestrator.core.signals import TERMINATION_SIGNALS, start_thread_without_signals
from orchestrator.core.streams import output_error

# Failures of system calls that the user can fix; other failures (a missing file) are bugs of this tool.
_HOST_ERRNOS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
    | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    # a dangling link, a FIFO or the like where a file or directory is expected
    | {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV}
)

_Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers
_SOON: Final = 0.01  # seconds


def run_and_exit(command: Callable[[], object]) -> None:
    """Run a command and exit with the code of its error. Other users cannot write to the files it creates.

    A closed terminal counts as Ctrl-C, but not under `nohup`, which ignores SIGHUP. Before and after the command a
    signal just ends the process, see `orchestrator.__main__`.
    """
    os.umask(os.umask(0o022) | 0o022)
    try:
        _answer(signal.default_int_handler, _interrupt)
        # This process may inherit blocked signals: a command blocks them while it starts other programs.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
        sys.unraisablehook = _interrupt_again
        _run(command)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    finally:
        try:
            _answer(signal.SIG_DFL, signal.SIG_DFL)
        except KeyboardInterrupt:  # a second signal
            _answer(signal.SIG_DFL, signal.SIG_DFL)
            sys.exit(Interrupted.exit_code)
        sys.unraisablehook = sys.__unraisablehook__


def _run(command: Callable[[], object]) -> None:
    try:
        try:
            command()
        except SystemExit as end:
            if not end.code:
                _require_output()
            raise
        _require_output()
    except DeployError as error:
        _exit_with(error)
    except UnsafeValueError as error:  # from a record, an index or a response that no caller expected to be invalid
        _exit_with(HostError(str(error), hint="check the file or the server that contains this value"))
    except Exception as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        _exit_with(_host_error(error) if _is_host_error(error) else _internal_error(error))


def _require_output() -> None:
    """Raise OutputError if a command succeeded but could not write its result."""
    if reason := output_error():
        hint = "the command is complete; redirect the output to another disk" if "space" in reason else ""
        raise OutputError(f"cannot write the result to standard output: {reason}", hint=hint)


def _answer(interrupt: _Handler, termination: _Handler) -> None:
    """Set the handlers of termination signals, except for signals that are ignored."""
    for number, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, termination), (signal.SIGHUP, termination)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _exit_with(error: DeployError) -> NoReturn:
    show_error(error)
    sys.exit(error.exit_code)


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error: a library may catch KeyboardInterrupt and raise its own exception.

    pydantic-core does not chain it, but the text of its SchemaError ends with the name of the caught exception.
    """
    if "KeyboardInterrupt" in str(error):
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _is_host_error(error: Exception) -> TypeGuard[OSError]:
    """Return whether a system call failed for a reason that the user can change, such as a full disk.

    `tempfile` raises ENOENT if it finds no writable directory.
    """
    return isinstance(error, OSError) and (
        error.errno in _HOST_ERRNOS or str(error.strerror).startswith("No usable temporary directory")
    )


def _host_error(error: OSError) -> HostError:
    location = str(error.filename2 or error.filename or "")
    hint = "free disk space, or name a directory where you may write: an option, DEPLOY_HOME or TMPDIR"
    return HostError(f"cannot use a file: {error.strerror or error}", location=location, hint=hint)


def _internal_error(error: Exception) -> DeployError:
    """Return the error for a bug in this tool; the traceback is written to a file."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = redact("".join(traceback.format_exception(error)))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="deploy-fault-", suffix=".txt", delete=False) as file:
            file.write(text)
        hint = f"please report it with `{file.name}`"
    except OSError as unwritable:  # a full or read-only disk
        hint = f"please report it; the traceback cannot be saved: {unwritable.strerror or unwritable}"
    return DeployError(
        f"internal error: {type(error).__name__}: {error}",
        location=f"{Path(last.filename).name}:{last.lineno}",
        hint=hint,
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that Python dropped because it was raised in one of its own callbacks (importlib)."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGTERM))  # a signal now would be lost
    while timer.ident is None:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C would be reported as dropped; the first is being handled
            start_thread_without_signals(timer)
