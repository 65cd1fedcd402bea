"""Execution of programs. All other modules only build argv lists."""

import io
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NoReturn, Self

from orchestrator.core.errors import HostError
from orchestrator.core.secrets import HUB_TOKENS, is_known
from orchestrator.core.streams import ignore_sigpipe

PIPE: Final = subprocess.PIPE
DEVNULL: Final = subprocess.DEVNULL
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_TIMED_OUT: Final = 124  # the exit code of coreutils' `timeout`
_GRACE: Final = 5.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True, kw_only=True)
class CompletedProgram:
    """The result of a program that has exited."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether the program exited with 0."""
        return self.code == 0


class ProgramMissingError(HostError):
    """A program is not on the PATH, or this user may not execute it."""

    def __init__(self, program: str) -> None:
        """Create an error for `program`, the first word of an argv."""
        super().__init__(f"no program `{program}` found on this host", hint=f"install `{program}`, or correct its path")


def quote(argv: Sequence[str]) -> str:
    """Return `argv` as a single line that a POSIX shell splits into the same words."""
    return shlex.join(argv)


def python_module_argv(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the argv that runs a Python module; `-P` keeps the working directory from shadowing its imports."""
    return [python, "-P", "-m", module, *arguments]


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    inherits: Sequence[int] = (),
) -> CompletedProgram:
    """Run a program to its end and capture its output. `env` as in `start`; the program `inherits` these descriptors.

    A program that runs longer than `timeout` seconds is killed, with exit code 124 as with coreutils' `timeout`. Raises
    ProgramMissingError if there is no such program.
    """
    try:
        done = subprocess.run(
            list(argv),
            cwd=cwd,
            env=_environment(env),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            pass_fds=inherits,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ProgramMissingError(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        return CompletedProgram(
            argv=tuple(argv), code=_TIMED_OUT, stdout=_text(error.stdout), stderr=_text(error.stderr)
        )
    return CompletedProgram(argv=tuple(argv), code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_or_127(
    argv: Sequence[str], *, timeout: float, cwd: Path | None = None, env: Mapping[str, str | None] | None = None
) -> CompletedProgram:
    """Run a program as `run` does; a missing program gives a result with exit code 127, as in a shell."""
    try:
        return run(argv, timeout=timeout, cwd=cwd, env=env)
    except ProgramMissingError as error:
        return CompletedProgram(argv=tuple(argv), code=127, stdout="", stderr=error.message)


class Program:
    """A started program, which may still be running. At the end of a `with` block its process group is killed."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The pid of the program, which is also its process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, -N if signal N killed the program, None while it is running."""
        return self._process.poll()

    @property
    def output(self) -> IO[bytes]:
        """The output of a program started with `output=PIPE`; with `errors=PIPE` alone, its standard error."""
        pipe = self._process.stdout or self._process.stderr
        assert pipe is not None  # noqa: S101 - for the type
        return pipe

    def feed(self, text: str) -> None:
        """Write text to a program started with `stdin=PIPE`; ignored if the program has exited."""
        assert self._process.stdin is not None  # noqa: S101 - for the type
        with suppress(BrokenPipeError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        r"""Yield the lines of the output until all its writers have exited; `\r` of a progress bar also ends a line."""
        text = io.TextIOWrapper(self.output, encoding="utf-8", errors="replace")
        try:
            for line in text:
                yield line.rstrip("\n")
        finally:
            with suppress(ValueError):  # the pipe is already closed
                text.detach()  # otherwise the pipe would be closed together with the wrapper

    def wait(self) -> int:
        """Wait until the program exits; return its exit code."""
        return self._process.wait()

    def wait_for(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the program to exit; return its exit code, None if it is still running."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program, unless it has exited."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals, *, grace: float = 0.0) -> None:
        """Send a signal to the process group; kill the group after `grace` seconds."""
        for item in (number, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, item)
            except ProcessLookupError:
                break
            self.wait_for(grace)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # input that the program did not read
                    pipe.close()


def start(
    argv: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: bytes | int = b"",
    output: int | IO[bytes] | None = None,
    errors: int | IO[bytes] | None = None,
    tied: bool = False,
) -> Program:
    """Start a program in a new session, where Ctrl-C does not reach it, and return at once.

    A `tied` program gets a new process group in this session instead, and the kernel kills it when this process exits.

    `env` is added to this process's environment, which is stripped of secrets; a variable that is None is removed.
    `stdin` is the program's input, or `PIPE` to keep it open. `output` is a file, `PIPE`, or None to inherit this
    process's streams; standard error goes there too, unless `errors` names another target.

    Raises ProgramMissingError if there is no such program, OSError if it cannot be executed.
    """
    with _readable(stdin) as source:
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=_environment(env),
                stdin=source,
                stdout=output,
                stderr=errors if errors is not None else (subprocess.STDOUT if output is not None else None),
                start_new_session=not tied,
                process_group=0 if tied else None,
                preexec_fn=_die_with(os.getpid()) if tied else None,  # noqa: PLW1509 - it takes no lock
            )
        except (FileNotFoundError, PermissionError) as error:
            raise ProgramMissingError(argv[0]) from error
    return Program(process)


def run_concurrently(argvs: Sequence[Sequence[str]], *, timeout: float) -> list[CompletedProgram]:
    """Run programs at the same time and wait for all; a program that exceeds `timeout` seconds gets exit code 124.

    An interruption ends them all; if this process is killed, the kernel kills them. Raises ProgramMissingError.
    """
    with ExitStack() as stack:
        started = list[tuple[Program, IO[bytes], IO[bytes]]]()
        for argv in argvs:
            output, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            program = start(argv, output=output, errors=errors, tied=True)
            stack.callback(program.end, signal.SIGTERM, grace=_GRACE)
            started.append((program, output, errors))
        end = time.monotonic() + timeout
        codes = [program.wait_for(max(end - time.monotonic(), 0)) for program, *_ in started]
        return [
            CompletedProgram(
                argv=tuple(argv),
                code=_TIMED_OUT if code is None else code,
                stdout=_written(output),
                stderr=_written(errors),
            )
            for argv, code, (_, output, errors) in zip(argvs, codes, started, strict=True)
        ]


def _written(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def exec_program(argv: Sequence[str], *, env: Mapping[str, str | None]) -> NoReturn:
    """Replace this process by a program with the whole environment, including secrets, and the variables in `env`."""
    os.execve(argv[0], list(argv), _environment({**os.environ, **env}))  # noqa: S606 - the purpose of this function


def follow(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: bytes = b"",
    grace: float = 0.0,
) -> int:
    """Run a program to its end, pass each line of its output (both streams) to `on_line`, and return its exit code.

    SIGPIPE no longer ends the command, because the program builds, installs or measures. `env` and `stdin` as in
    `start`. An exception during the wait, such as Ctrl-C, interrupts the program, and its group is killed after `grace`
    seconds. If this process is killed, the kernel kills the program.

    Raises ProgramMissingError if there is no such program.
    """
    ignore_sigpipe()
    with start(argv, cwd=cwd, env=env, stdin=stdin, output=PIPE, tied=True) as program:
        try:
            for line in program.lines():
                on_line(line)
            return program.wait()
        except BaseException:
            program.end(_interruption(), grace=grace)
            raise


def run_attached(argv: Sequence[str], **environ: str) -> int:
    """Run a program on this terminal to its end, with additional variables, and return its exit code.

    The program inherits the whole environment, including secrets. Ctrl-C is passed on to the program exactly once, and
    raised here only after the program has exited. SIGPIPE no longer ends the command, as the program may change
    anything.
    """
    ignore_sigpipe()
    program = start(argv, env={**os.environ, **environ})
    try:
        return program.wait()
    except KeyboardInterrupt:
        program.send(_interruption())
        program.wait()
        raise


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return this process's environment without secrets and with `changes`; a variable that is None is removed."""
    environ = {
        name: value for name, value in os.environ.items() if name not in HUB_TOKENS and not is_known(value.strip())
    }
    both = {**environ, **(changes or {})}
    return {name: value for name, value in both.items() if value is not None}


@contextmanager
def _readable(stdin: bytes | int) -> Iterator[IO[bytes] | int]:
    """Yield `stdin` as a file or descriptor for a program; empty bytes give an immediate end of file."""
    if not isinstance(stdin, bytes):
        yield stdin
    elif not stdin:
        yield subprocess.DEVNULL
    else:
        with os.fdopen(os.memfd_create("stdin"), "w+b") as file:  # in memory, because a disk may be full
            file.write(stdin)
            file.seek(0)
            yield file


def _interruption() -> signal.Signals:
    """Return SIGINT, or SIGTERM if SIGINT is ignored: children inherit that, as in a script's background job."""
    return signal.SIGTERM if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else signal.SIGINT


def _die_with(parent: int) -> Callable[[], None]:
    import ctypes  # noqa: PLC0415 - few commands need it

    libc = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent exited before the call of prctl
            os._exit(1)

    return arrange


def _text(output: str | bytes | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else output.decode(errors="replace")
