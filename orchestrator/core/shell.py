"""The one place that executes a program. Everything above it builds argv lists and executes nothing."""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import HostError


@dataclass(frozen=True, kw_only=True)
class Result:
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


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
) -> Result:
    """Run a program to its end and keep what it printed. `env` is added to this process's environment.

    Raises ProgramMissingError where there is no such program; a program that outlives `timeout` seconds is killed and
    reported with exit code 124, as coreutils' `timeout` does.
    """
    try:
        done = subprocess.run(
            list(argv),
            cwd=cwd,
            env={**os.environ, **env} if env is not None else None,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ProgramMissingError(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        return Result(argv=tuple(argv), code=124, stdout=_text(error.stdout), stderr=_text(error.stderr))
    return Result(argv=tuple(argv), code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def attempt(argv: Sequence[str], *, timeout: float) -> Result:
    """As `run`, but a program that is missing is a result with exit code 127, as it is in a shell."""
    try:
        return run(argv, timeout=timeout)
    except ProgramMissingError as error:
        return Result(argv=tuple(argv), code=127, stdout="", stderr=error.message)


def follow(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program to its end, hand each line of its output (both streams) to `on_line`, and return its exit code.

    `env` is added to this process's environment.

    Raises ProgramMissingError where there is no such program; the program is killed when an exception ends the waiting.
    """
    try:
        program = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env={**os.environ, **env} if env is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ProgramMissingError(argv[0]) from error
    with program:
        try:
            for line in program.stdout or ():
                on_line(line.rstrip("\n"))
            return program.wait()
        except BaseException:
            program.kill()
            raise


def attend(argv: Sequence[str]) -> int:
    """Run a program on this terminal to its end and return its exit code.

    Ctrl-C reaches it exactly once, as SIGINT, and is raised here only after it has cleaned up and ended.
    """
    with subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, start_new_session=True) as program:
        try:
            return program.wait()
        except KeyboardInterrupt:
            program.send_signal(signal.SIGINT)
            program.wait()
            raise


def _text(output: str | bytes | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else output.decode(errors="replace")
