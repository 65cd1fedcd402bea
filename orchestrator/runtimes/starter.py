"""Which process is starting a server, so that the next one can tell an unfinished start from an abandoned one."""

import os
from pathlib import Path


def this_process() -> str:
    """This boot, this process, and when it began: three words that no other process will have together."""
    return _identity(os.getpid())


def was_left_behind(starter: str) -> bool:
    """Whether the process that wrote `starter` (and anything after it) ran on this machine, and runs no more."""
    boot, pid, *_ = [*starter.split("/"), "", ""]
    if boot != _boot() or not pid.isdigit():
        return False
    try:
        return not f"{starter}/".startswith(f"{_identity(int(pid))}/")
    except FileNotFoundError:
        return True


def _identity(pid: int) -> str:
    """Field 22 of /proc/<pid>/stat is the start time in clock ticks; the name before it may hold anything but `)`."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{_boot()}/{pid}/{fields[19]}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
