"""`deploy` as a user runs it: a process with an environment, exit code, stdout and stderr."""

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
from typing import Final

from forked import Forks
from json_schemas import check_stdout
from patience import PATIENCE
from proc_files import proc_files

from orchestrator.core.paths import Home

# Read when an interpreter starts or a module is imported: a forked command would not see another value.
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "TMPDIR", "HOME", "NO_COLOR", "FORCE_COLOR", "TERM")
_forks: list[Forks] = []  # the process that commands are forked from, while there is one
_at_start: dict[str, str] = {}  # the environment in which it began


@contextmanager
def commands_forked(forks: Forks) -> Iterator[None]:
    """Let `CommandLine.run` fork its commands for the length of a block, begun in the environment `forks` began in."""
    _at_start.update(_start_environ(os.environ))
    _forks.append(forks)
    try:
        yield
    finally:
        _forks.clear()
        _at_start.clear()


def _start_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_START)}


@dataclass(frozen=True)
class CommandLine:
    """Runs `deploy` with a home of the test's own."""

    home: Home
    environ: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False  # each command is a program of its own, as a user's is, and never forked

    def run(self, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run to the end; forked, which costs a tenth of a program, where its environment allows that."""
        env = self._env(environ)
        if self.fresh or not _forks or _start_environ(env) != _at_start:
            done = subprocess.run(
                self.argv(*words), env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            check_stdout(words, done.stdout)
            return done
        with TemporaryDirectory() as output:
            command = _forks[0].start(words, env=env, output=Path(output), cwd=Path.cwd())
            if not command.ends_within(PATIENCE):
                command.send(signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, PATIENCE)
            ended = command.wait()
        assert ended.code is not None
        check_stdout(words, ended.stdout)
        return subprocess.CompletedProcess(self.argv(*words), ended.code, ended.stdout, ended.stderr)

    @contextmanager
    def running(self, *words: str, ignores: Sequence[str] = (), **environ: str) -> Iterator["Running"]:
        """Run in the background; killed at the end, if it is still there. `ignores`: as under nohup, such as "HUP"."""
        deaf = ["sh", "-c", f"trap '' {' '.join(ignores)}; exec \"$@\"", "sh"] if ignores else []
        argv, env = [*deaf, *self.argv(*words)], self._env(environ)
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield Running(process)
            finally:
                process.kill()

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words]

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "DEPLOY_HOME": str(self.home.root), **self.environ, **more}


@dataclass(frozen=True)
class Running:
    """A `deploy` command in the background."""

    process: "subprocess.Popen[str]"

    def wait_for(self, pattern: str) -> str:
        """The first line of stderr that matches."""
        assert self.process.stderr is not None
        seen = []
        deadline = time.monotonic() + PATIENCE
        for line in self.process.stderr:
            seen.append(line)
            if re.search(pattern, line):
                return line
            assert time.monotonic() < deadline, f"no line with {pattern!r} in time"
        raise AssertionError(f"ended without a line with {pattern!r}:\n{''.join(seen)}")

    def line(self) -> str:
        """The next line of stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; the exit code and what was said from here on."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def processes_with(text: str) -> list[str]:
    """Command lines of this machine's processes that hold `text` (zombies have none)."""
    found = []
    for pid, words in proc_files("cmdline"):
        line = words.replace(b"\0", b" ").decode(errors="replace")
        if text in line and pid != os.getpid():
            found.append(line)
    return found
