"""Run `deploy` as a process, as a user does."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TextIO

from forked import Command, Forks
from json_schemas import check_stdout
from proc_files import proc_files
from waits import TIMEOUT

from orchestrator.core.paths import Home

# Read when an interpreter starts or a module is imported: a forked command would ignore another value.
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "HOME", "NO_COLOR", "FORCE_COLOR", "TERM")
_forks: list[Forks] = []  # the process that commands are forked from, if any
_at_start: dict[str, str] = {}  # its environment when it started


@contextmanager
def commands_forked(forks: Forks) -> Iterator[None]:
    """Let `CommandLine` fork its commands from `forks` for the length of the block."""
    _at_start.update(_start_environ(os.environ))
    _forks.append(forks)
    yield
    _forks.clear()
    _at_start.clear()


def _start_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_START)}


@dataclass(frozen=True)
class CommandLine:
    """Runs `deploy` with its own home."""

    home: Home
    environ: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False  # start a new interpreter for each command instead of a fork

    def run(self, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        with self.running(*words, **environ) as command:
            code, stdout, stderr = command.wait()
        check_stdout(words, stdout)
        return subprocess.CompletedProcess(self.argv(*words), code, stdout, stderr)

    @contextmanager
    def running(self, *words: str, ignores: Sequence[signal.Signals] = (), **environ: str) -> Iterator["Running"]:
        """Run in the background, with the signals in `ignores` ignored; kill it at the end of the block.

        The command is a fork if its environment allows it: a tenth of the cost of a new interpreter.
        """
        env = self._env(environ)
        fresh = self.fresh or _start_environ(env) != _at_start
        with TemporaryDirectory(dir=_forks[0].address.parent) as output:
            command = _forks[0].start(words, env=env, output=Path(output), cwd=Path.cwd(), fresh=fresh, ignores=ignores)
            try:
                yield Running(command)
            finally:
                command.send(signal.SIGKILL)
                command.wait()

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words]

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "DEPLOY_HOME": str(self.home.root), **self.environ, **more}


class Running:
    """A `deploy` command in the background."""

    def __init__(self, command: Command) -> None:
        self.pid, self.send, self._command = command.pid, command.send, command
        self._stdout, self._stderr = command.open("stdout"), command.open("stderr")

    def wait_for(self, pattern: str) -> str:
        """Return the first line of stderr that matches."""
        seen, deadline = [], time.monotonic() + TIMEOUT
        while line := self._line(self._stderr, deadline):
            seen.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"ended without a line with {pattern!r}:\n{''.join(seen)}")

    def line(self) -> str:
        """Return the next line of stdout; empty at the end."""
        return self._line(self._stdout, time.monotonic() + TIMEOUT)

    @property
    def over(self) -> bool:
        return self._command.ends_within(0)

    def wait(self) -> tuple[int, str, str]:
        """Return the exit code (-N for signal N), and the rest of stdout and stderr."""
        assert self._command.ends_within(TIMEOUT), self._command.stderr
        ended = self._command.wait()
        assert ended.code is not None
        return ended.code, self._stdout.read(), self._stderr.read()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; return the exit code and the rest of stderr."""
        self.send(number)
        code, _, text = self.wait()
        return code, text

    def _line(self, file: TextIO, deadline: float) -> str:
        line = ""
        while not line.endswith("\n"):
            over = self.over
            text = file.readline()
            line += text
            if over and not text:
                break
            assert time.monotonic() < deadline, f"no line in time: {self._command.stderr}"
            if not text:
                self._command.ends_within(0.02)
        return line


def processes_with(text: str) -> list[str]:
    """Return the command lines on this machine that contain `text`; zombies have none."""
    lines = []
    for pid, words in proc_files("cmdline"):
        line = words.replace(b"\0", b" ").decode(errors="replace")
        if text in line and pid != os.getpid():
            lines.append(line)
    return lines
