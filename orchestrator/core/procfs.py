"""What /proc says about processes: which one is meant, and everything it has started."""

import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "DEPLOY_SERVER"  # holds a server's token
_PROC = Path("/proc")
_IDENTITY: Final = re.compile(r"[0-9a-z-]+/[0-9]{1,10}/[0-9]{1,20}")
_GONE = "ZX"  # a zombie has ended and only waits to be collected


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process that runs. `started` is in clock ticks since boot: with the pid it tells a process from its reuse."""

    pid: int
    parent: int
    session: int
    started: int


@dataclass(frozen=True, kw_only=True)
class ProcessMarkers:
    """What tells the processes of one server from all others, whoever has their pids now.

    No one mark is on all of them: who calls setproctitle, as sglang's schedulers do, overwrites the environment that
    /proc shows, and who writes to a file of its own has let go of the server's output.
    """

    token: str  # in the environment, as the value of `VARIABLE`
    supervisor: str | None = None  # the `process_identity` of the leader of their session
    server: str | None = None  # the `process_identity` of the first of them that is not the supervisor
    output: str | None = None  # `pipe:[inode]`, what stdout and stderr go to


def read_process(pid: int) -> Process | None:
    """The process of that pid, None where there is none or it has ended (proc(5), /proc/<pid>/stat)."""
    try:
        stat = (_PROC / f"{pid}" / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    if fields[0] in _GONE:
        return None
    return Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def read_cmdline(pid: int) -> str:
    """The command line of a process, or what it calls itself instead; "" where there is none or it has ended."""
    with suppress(OSError):
        return (_PROC / f"{pid}" / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""


def process_identity(pid: int) -> str:
    """This boot, a pid, and when it began: three words that no other process will have together."""
    process = read_process(pid)
    return f"{_boot()}/{pid}/{process.started if process else 0}"


def is_identity(text: str) -> bool:
    """Whether `text` has the form of an `process_identity`."""
    return _IDENTITY.fullmatch(text) is not None


def find_process(identified: str) -> Process | None:
    """The process an `process_identity` was taken of, None where it has ended, whoever has its pid now."""
    boot, pid, started = identified.split("/")
    process = read_process(int(pid)) if boot == _boot() else None
    return process if process is not None and process.started == int(started) else None


def signal_processes(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal these processes, and nobody who has got the pid of one since it was looked at."""
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.started == process.started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def server_processes(marks: ProcessMarkers) -> tuple[Process, ...]:
    """Every process of a server that runs: those that bear a mark, and all their descendants.

    The session counts only while its leader runs: afterwards a stranger who got its pid may lead one of that number.
    """
    known = [marked for marked in (marks.supervisor, marks.server) if marked is not None]
    if any(marked.split("/")[0] != _boot() for marked in known):
        return ()
    first = min((int(marked.split("/")[2]) for marked in known), default=0)
    leader, server = (find_process(marked) if marked else None for marked in (marks.supervisor, marks.server))
    processes = {process.pid: process for process in _all()}
    members = {process.pid for process in (leader, server) if process is not None}
    members |= {pid for pid, process in processes.items() if leader is not None and process.session == leader.pid}
    members |= {pid for pid, process in processes.items() if process.started >= first and _bears(pid, marks)}
    while more := {pid for pid, process in processes.items() if process.parent in members} - members:
        members |= more
    return tuple(processes[pid] for pid in sorted(members & processes.keys()))


def tokens(program: str) -> frozenset[str]:
    """The tokens of this user's processes whose command line has the word `program`."""
    found = set()
    for process in _all():
        folder = _PROC / f"{process.pid}"
        with suppress(OSError):
            if folder.stat().st_uid == os.geteuid() and program in (folder / "cmdline").read_text("utf-8", "replace"):
                environ = (folder / "environ").read_bytes().split(b"\0")
                name = f"{VARIABLE}=".encode()
                found |= {os.fsdecode(each.removeprefix(name)) for each in environ if each.startswith(name)}
    return frozenset(found)


def _bears(pid: int, marks: ProcessMarkers) -> bool:
    """Whether it has the token or the output; a process that may not be looked at is somebody else's."""
    folder = _PROC / f"{pid}"
    with suppress(OSError):
        if os.fsencode(f"\0{VARIABLE}={marks.token}\0") in b"\0" + (folder / "environ").read_bytes():
            return True
    for stream in ("1", "2") if marks.output is not None else ():
        with suppress(OSError):
            if str((folder / "fd" / stream).readlink()) == marks.output:
                return True
    return False


def _all() -> Iterator[Process]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (process := read_process(int(entry.name))) is not None:
            yield process


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
