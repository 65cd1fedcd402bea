"""What a deployment has left behind: processes, a taken port, held locks, files half written, records out of form."""

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

SOON = 60.0  # seconds in which what has been told to end has ended
_BESIDE = re.compile(r"\..+\.\d+|.+\.(new|tmp|part)|secrets\.yaml")  # what `write_whole` writes first, a key's FIFO


def survivors(home: Path, port: int, *, killed: bool = False) -> list[str]:
    """Everything that is left of the servers of a home, once it has had a moment to end.

    A command that was `killed` may have left a file beside the one it was to replace; that one is whole.
    """
    deadline = time.monotonic() + SOON
    while (left := list(_survivors(home, port, killed=killed))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def programs_of(home: Path) -> Iterator[tuple[int, str]]:
    """Pid and command line of everything that works in a home or was told of it.

    A server works in its home, and its children with it, however little they have kept of its environment.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = os.fsencode(f"={home}") in (folder / "environ").read_bytes()
            if (folder / "cwd").readlink() == home or is_ours:
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _survivors(home: Path, port: int, *, killed: bool) -> Iterator[str]:
    for pid, line in programs_of(home):
        yield f"runs: {line[:120].strip()} ({pid})"
    if listens(port):
        yield f"listens: port {port}"
    for path in home.rglob("*"):
        if path.suffix == ".lock" or path.name == ".lock":
            yield from _held(path)
        elif _BESIDE.fullmatch(path.name) and not killed:
            yield f"half written: {path.relative_to(home)}"
        elif path.suffix == ".json" and path.is_file() and not (killed and ".making-" in str(path)):
            yield from _unexpected_files(path)  # but for a checkpoint that a killed command was generating


def _held(lock: Path) -> Iterator[str]:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield f"locked: {lock.name}"


def _unexpected_files(file: Path) -> Iterator[str]:
    try:
        json.loads(file.read_text())
        if file.name == "process.json":
            read_record(file.parent)
    except (ValueError, HostError) as error:
        yield f"not whole: {file.name}: {error}"
