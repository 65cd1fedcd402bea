"""Processes from /proc: their identity, and all processes of a server."""

import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "DEPLOY_SERVER"  # the environment variable with a server's token
_PROC = Path("/proc")
_IDENTITY: Final = re.compile(r"[0-9a-z-]+/[0-9]{1,10}/[0-9]{1,20}")
_EXITED = "ZX"  # zombie and dead: the process has exited


@dataclass(frozen=True, kw_only=True)
class Process:
    """A running process. `started`, in clock ticks since boot, distinguishes it from a later process with its pid."""

    pid: int
    parent: int
    session: int
    started: int


@dataclass(frozen=True, kw_only=True)
class ProcessMarkers:
    """Markers that identify the processes of one server, even if pids are reused.

    No marker is on all processes: setproctitle, which sglang's schedulers call, overwrites the environment that /proc
    shows, and a process that redirects its output no longer has the server's pipe.
    """

    token: str  # the value of `VARIABLE` in the environment
    supervisor: str | None = None  # the `process_identity` of the session leader
    server: str | None = None  # the `process_identity` of the first process after the supervisor
    output: str | None = None  # `pipe:[inode]`, the target of stdout and stderr


def read_process(pid: int) -> Process | None:
    """Return the process with a pid, None if there is none or it has exited (proc(5), /proc/<pid>/stat)."""
    try:
        stat = (_PROC / f"{pid}" / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may contain any character
    if fields[0] in _EXITED:
        return None
    return Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def read_cmdline(pid: int) -> str:
    """Return the command line of a process, or its title if it set one; "" if there is none or it has exited."""
    with suppress(OSError):
        return (_PROC / f"{pid}" / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""


def resident_bytes(pid: int) -> int:
    """Return the memory of a process in RAM, without mapped files, which the kernel can drop; 0 if it has exited."""
    with suppress(OSError):
        status = (_PROC / f"{pid}" / "status").read_text(errors="replace")  # proc(5): in kB
        return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", status, re.MULTILINE)))
    return 0


def process_identity(pid: int) -> str:
    """Return the boot id, pid and start time of a process, which together identify it forever."""
    process = read_process(pid)
    return f"{_boot()}/{pid}/{process.started if process else 0}"


def is_identity(text: str) -> bool:
    """Return whether `text` has the format of a `process_identity`."""
    return _IDENTITY.fullmatch(text) is not None


def find_process(identified: str) -> Process | None:
    """Return the process with a `process_identity`, None if it has exited, even if its pid is in use again."""
    boot, pid, started = identified.split("/")
    process = read_process(int(pid)) if boot == _boot() else None
    return process if process is not None and process.started == int(started) else None


def signal_processes(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to processes, skipping pids that another process has taken over."""
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.started == process.started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def server_processes(markers: ProcessMarkers) -> tuple[Process, ...]:
    """Return the running processes of a server: those with a marker, and all their descendants.

    Members of the session count only while its leader runs: afterwards an unrelated process may get the leader's pid
    and lead a session with the same number.
    """
    identities = [identity for identity in (markers.supervisor, markers.server) if identity is not None]
    if any(identity.split("/")[0] != _boot() for identity in identities):
        return ()
    first = min((int(identity.split("/")[2]) for identity in identities), default=0)
    leader, server = (find_process(identity) if identity else None for identity in (markers.supervisor, markers.server))
    running = (read_process(int(folder.name)) for folder in _folders())
    processes = {process.pid: process for process in running if process is not None}
    members = {process.pid for process in (leader, server) if process is not None}
    members |= {pid for pid, process in processes.items() if leader is not None and process.session == leader.pid}
    members |= {pid for pid, process in processes.items() if process.started >= first and _has_marker(pid, markers)}
    while children := {pid for pid, process in processes.items() if process.parent in members} - members:
        members |= children
    return tuple(processes[pid] for pid in sorted(members & processes.keys()))


def tokens(program: str) -> frozenset[str]:
    """Return the server tokens of this user's processes with `program` in their command line."""
    values, name = set(), f"{VARIABLE}=".encode()
    for folder in _folders():
        with suppress(OSError):
            if program.encode() in (folder / "cmdline").read_bytes() and folder.stat().st_uid == os.geteuid():
                environ = (folder / "environ").read_bytes().split(b"\0")
                values |= {os.fsdecode(item.removeprefix(name)) for item in environ if item.startswith(name)}
    return frozenset(values)


def _has_marker(pid: int, markers: ProcessMarkers) -> bool:
    """Return whether a process has the token or the output; False for the process of another user."""
    folder = _PROC / f"{pid}"
    with suppress(OSError):
        if os.fsencode(f"\0{VARIABLE}={markers.token}\0") in b"\0" + (folder / "environ").read_bytes():
            return True
    for stream in ("1", "2") if markers.output is not None else ():
        with suppress(OSError):
            if str((folder / "fd" / stream).readlink()) == markers.output:
                return True
    return False


def _folders() -> Iterator[Path]:
    return (entry for entry in _PROC.iterdir() if entry.name.isdigit())


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
