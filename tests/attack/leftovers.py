"""Find the leftovers of a deployment: processes, an open port, locks, temporary files, and invalid records."""

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.runtimes.supervisor.record import read_record

EXIT_TIMEOUT_S = 60.0  # for processes that are exiting
_TEMPORARY = re.compile(r"\..+\.\d+|.+\.(new|tmp|part)|secrets\.yaml")  # files of `atomic_write`, and a key's FIFO


def leftovers(home: Path, port: int, *, killed: bool = False) -> list[str]:
    """Return the leftovers of the servers of a home, after waiting for exiting processes.

    A `killed` command may leave a temporary file, but the file that it was going to replace must be complete.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while (leftovers := list(_leftovers(home, port, killed=killed))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return leftovers


def programs_of(home: Path) -> Iterator[tuple[int, str]]:
    """Yield the pid and command line of each process with the home as working directory or in its environment.

    The working directory finds the children of a server that have cleared their environment.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = os.fsencode(f"={home}") in (folder / "environ").read_bytes()
            if (folder / "cwd").readlink() == home or is_ours:
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _leftovers(home: Path, port: int, *, killed: bool) -> Iterator[str]:
    for pid, line in programs_of(home):
        yield f"runs: {line[:120].strip()} ({pid})"
    if listens(port):
        yield f"listens: port {port}"
    for path in home.rglob("*"):
        if path.suffix == ".lock" or path.name == ".lock":
            yield from _locked(path)
        elif _TEMPORARY.fullmatch(path.name) and not killed:
            yield f"temporary file: {path.relative_to(home)}"
        elif path.suffix == ".json" and path.is_file() and not (killed and ".making-" in str(path)):
            yield from _invalid(path)  # except a checkpoint that a killed command was generating


def _locked(lock: Path) -> Iterator[str]:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield f"locked: {lock.name}"


def _invalid(file: Path) -> Iterator[str]:
    try:
        json.loads(file.read_text())
        if file.name == "process.json":
            read_record(file.parent)
    except (ValueError, HostError) as error:
        yield f"invalid: {file.name}: {error}"
