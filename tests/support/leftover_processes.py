"""Find and end the processes and containers that a test has left running."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.core.paths import Home

MARK = "DEPLOY_TEST"  # environment variable that all programs of a test inherit
_GRACE_S = 60.0  # for processes that are exiting


def end_marked(test: str) -> list[str]:
    """Kill the processes of a test that do not exit in time; return their command lines."""
    deadline = time.monotonic() + _GRACE_S
    while (remaining := programs_with(MARK, test)) and time.monotonic() < deadline:
        time.sleep(0.05)
    commands = [command for _, command in remaining]
    while remaining:
        for pid, _ in remaining:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        remaining = programs_with(MARK, test)
    return commands


def end_containers(home: Home) -> list[str]:
    """Remove the containers whose run directories are in `home`; return their names."""
    argv = ["docker", "ps", "--all", "--format", '{{.Names}} {{.Label "deploy.run-dir"}}']
    listed = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    containers = [line.partition(" ")[::2] for line in listed]
    remaining = [name for name, folder in containers if folder.startswith(f"{home.root}/")]
    if remaining:
        subprocess.run(["docker", "rm", "--force", *remaining], capture_output=True, check=False)
    return remaining


def programs_with(variable: str, value: str) -> list[tuple[int, str]]:
    """Return the pid and command line of each process with this environment variable, without zombies."""
    return list(_programs_with(f"{variable}={value}".encode()))


def _programs_with(wanted: bytes) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
