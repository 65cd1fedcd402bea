"""What /proc says about processes: which one is meant, and everything it has started."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GONE = "ZX"  # a zombie has ended and only waits to be collected


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process that runs. `started` is in clock ticks since boot: with the pid it tells a process from its reuse."""

    pid: int
    parent: int
    session: int
    started: int


def read_process(pid: int) -> Process | None:
    """The process of that pid, None where there is none or it has ended (proc(5), /proc/<pid>/stat)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    if fields[0] in _GONE:
        return None
    return Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def identity(pid: int) -> str:
    """This boot, a pid, and when it began: three words that no other process will have together."""
    process = read_process(pid)
    return f"{_boot()}/{pid}/{process.started if process else 0}"


def find_process(identified: str) -> Process | None:
    """The process an `identity` was taken of, None where it has ended, whoever has its pid now."""
    boot, pid, started = identified.split("/")
    process = read_process(int(pid)) if boot == _boot() else None
    return process if process is not None and process.started == int(started) else None


def family(identified: str) -> tuple[Process, ...]:
    """The session leader an `identity` was taken of, its session, and all their descendants, as far as they run.

    The session is looked through even where its leader has ended: no pid is given out again while a session bears it.
    """
    boot, leader, started = identified.split("/")
    first = read_process(int(leader))
    if boot != _boot() or (first is not None and first.started != int(started)):
        return ()
    processes = {process.pid: process for process in _all()}
    members = {pid for pid, process in processes.items() if int(leader) in (pid, process.session)}
    while more := {pid for pid, process in processes.items() if process.parent in members} - members:
        members |= more
    return tuple(processes[pid] for pid in sorted(members))


def _all() -> Iterator[Process]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (process := read_process(int(entry.name))) is not None:
            yield process


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
