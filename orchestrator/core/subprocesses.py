"""The one place that executes a program. Everything above it builds argv lists and executes nothing."""

import io
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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


@dataclass(frozen=True, kw_only=True)
class CompletedProgram:
    """How a program ended."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.code == 0


class ProgramMissingError(HostError):
    """A program that is not on the PATH, or that this user may not execute."""

    def __init__(self, program: str) -> None:
        """`program` is the first word of the argv."""
        super().__init__(f"there is no program `{program}` on this machine", hint="install it, or correct its path")


def quote(argv: Sequence[str]) -> str:
    """`argv` as one line a POSIX shell reads back to the same words."""
    return shlex.join(argv)


def python_module_argv(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The argv of a module, of this Python or of one it has made; the working directory shadows nothing it imports."""
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
    """Run a program to its end and keep what it printed. `env` as of `start`; it `inherits` these descriptors.

    Raises ProgramMissingError where there is no such program; a program that outlives `timeout` seconds is killed and
    reported with exit code 124, as coreutils' `timeout` does.
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
        return CompletedProgram(argv=tuple(argv), code=124, stdout=_text(error.stdout), stderr=_text(error.stderr))
    return CompletedProgram(argv=tuple(argv), code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_or_127(
    argv: Sequence[str], *, timeout: float, cwd: Path | None = None, env: Mapping[str, str | None] | None = None
) -> CompletedProgram:
    """As `run`, but a program that is missing is a result with exit code 127, as it is in a shell."""
    try:
        return run(argv, timeout=timeout, cwd=cwd, env=env)
    except ProgramMissingError as error:
        return CompletedProgram(argv=tuple(argv), code=127, stdout="", stderr=error.message)


class Program:
    """A program that was started and may still run. A `with` around it leaves nothing of it behind."""

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
        """Of the program and of its group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, -N where signal N ended it, None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> IO[bytes]:
        """What it prints, of a program that was started with `output=PIPE`, or with `errors=PIPE` for that alone."""
        pipe = self._process.stdout or self._process.stderr
        assert pipe is not None  # noqa: S101 - for the type
        return pipe

    def feed(self, text: str) -> None:
        """Hand it a text, of a program that was started with `stdin=PIPE`; one that has ended does not mind."""
        assert self._process.stdin is not None  # noqa: S101 - for the type
        with suppress(BrokenPipeError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        r"""The lines of its output until nobody holds it open any more; `\r` of a progress bar ends one as well."""
        text = io.TextIOWrapper(self.output, encoding="utf-8", errors="replace")
        try:
            for line in text:
                yield line.rstrip("\n")
        finally:
            with suppress(ValueError):  # the pipe is closed already
                text.detach()  # or else the pipe would be closed with it

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        return self._process.wait()

    def wait_for(self, seconds: float) -> int | None:
        """Wait so long for its end; its exit code, None where it runs on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def send(self, number: signal.Signals) -> None:
        """Send the program a signal, and nothing where it has ended."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals, *, grace: float = 0.0) -> None:
        """Send its whole group a signal, and kill what is left of it after `grace` seconds."""
        for each in (number, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, each)
            except ProcessLookupError:
                break
            self.wait_for(grace)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it was fed, and did not read
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
    """Start a program in a session of its own, where Ctrl-C does not reach it, and return at once.

    One that is `tied` is in a group of its own of this session, and the kernel kills it when this process ends.

    `env` is added to this process's environment without its secrets; a variable that is None is taken out of it.
    `stdin` is what it reads, or `PIPE` to hold it open. `output` is a file, `PIPE` or None for this process's own;
    `errors` go there too, or into a file.

    Raises ProgramMissingError where there is no such program, OSError where it cannot be executed.
    """
    with _readable(stdin) as given:
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=_environment(env),
                stdin=given,
                stdout=output,
                stderr=errors if errors is not None else (subprocess.STDOUT if output is not None else None),
                start_new_session=not tied,
                process_group=0 if tied else None,
                preexec_fn=_die_with(os.getpid()) if tied else None,  # noqa: PLW1509 - it takes no lock
            )
        except (FileNotFoundError, PermissionError) as error:
            raise ProgramMissingError(argv[0]) from error
    return Program(process)


def exec_program(argv: Sequence[str], *, env: Mapping[str, str | None]) -> NoReturn:
    """Let a program take this process's place, with its whole environment, secrets too, and these variables."""
    os.execve(argv[0], list(argv), _environment({**os.environ, **env}))  # noqa: S606 - that is what it is for


def follow(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: bytes = b"",
    grace: float = 0.0,
) -> int:
    """Run a program to its end, hand each line of its output (both streams) to `on_line`, and return its exit code.

    Such a program builds, installs or measures: SIGPIPE no longer ends the command. `env` and `stdin` as of `start`. An
    exception that ends the waiting, Ctrl-C above all, interrupts the program, and kills what is left of it after
    `grace` seconds. The kernel kills it when this process is killed.

    Raises ProgramMissingError where there is no such program.
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
    """Run a program on this terminal to its end, with these variables, and return its exit code.

    It inherits all that this process has, secrets too. Ctrl-C reaches it exactly once and is raised here only after it
    has cleaned up and ended. It may change anything: SIGPIPE no longer ends the command.
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
    """This process's environment without its secrets, with these variables; one that is None is taken out."""
    kept = {name: value for name, value in os.environ.items() if name not in HUB_TOKENS and not is_known(value.strip())}
    both = {**kept, **(changes or {})}
    return {name: value for name, value in both.items() if value is not None}


@contextmanager
def _readable(stdin: bytes | int) -> Iterator[IO[bytes] | int]:
    """`stdin` as something a program can read from; no bytes are the end of the file."""
    if not isinstance(stdin, bytes):
        yield stdin
    elif not stdin:
        yield subprocess.DEVNULL
    else:
        with os.fdopen(os.memfd_create("stdin"), "w+b") as file:  # no disk, which may be full
            file.write(stdin)
            file.seek(0)
            yield file


def _interruption() -> signal.Signals:
    """SIGINT, but SIGTERM where SIGINT is ignored, as in a script's background job: a child inherits that."""
    return signal.SIGTERM if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else signal.SIGINT


def _die_with(parent: int) -> Callable[[], None]:
    import ctypes  # noqa: PLC0415 - few commands need it

    libc = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)

    return arrange


def _text(output: str | bytes | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else output.decode(errors="replace")
