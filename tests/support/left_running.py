"""What a test has left running: found by a mark in its environment, ended, and told."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.core.paths import Home

MARK = "DEPLOY_TEST"  # the variable that every program started by a test inherits
_GRACE_S = 60.0  # what has been told to end may take a moment


def end_marked(test: str) -> list[str]:
    """Kill what still runs of a test and does not end by itself; its command lines."""
    deadline = time.monotonic() + _GRACE_S
    while (left := programs_with(MARK, test)) and time.monotonic() < deadline:
        time.sleep(0.05)
    text = [command for _, command in left]
    while left:
        for pid, _ in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        left = programs_with(MARK, test)
    return text


def end_containers(home: Home) -> list[str]:
    """Remove the containers of servers whose run directories lie in `home`; their names."""
    argv = ["docker", "ps", "--all", "--format", '{{.Names}} {{.Label "deploy.run-dir"}}']
    listed = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    left = [name for name, _, folder in (line.partition(" ") for line in listed) if folder.startswith(f"{home.root}/")]
    if left:
        subprocess.run(["docker", "rm", "--force", *left], capture_output=True, check=False)
    return left


def programs_with(variable: str, value: str) -> list[tuple[int, str]]:
    """Pid and command line of all that inherited a variable; what has ended and was not waited for has none."""
    return list(_programs_with(f"{variable}={value}".encode()))


def _programs_with(wanted: bytes) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
