"""The survey of a host: one shell script that collects all facts and prints them in sections.

The same script runs locally, over ssh or in a container, in one round trip instead of thirty. Tests parse recorded
output. To collect another fact, add an entry to HOST_SECTIONS.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import CompletedProgram, run_or_127
from orchestrator.hosts.nics import nic_survey

Runner = Callable[[Sequence[str]], CompletedProgram]  # runs a program on the surveyed host and waits until it exits

HOST_SECTIONS: Mapping[str, str] = {
    "user": "id -u; id -un",
    "devices": "for d in /dev/kfd /dev/dri/renderD*; do [ -e $d ] || continue; "
    '[ -r $d ] && [ -w $d ] && m=open || m=closed; stat -c "%n %g %G $m" $d; done',
    "memlock": "ulimit -l",
    "memory": "cat /proc/meminfo; cd /sys/fs/cgroup && cat memory.max memory.current 2>/dev/null "
    "&& grep -E '^(in)?active_file ' memory.stat",  # of a container
    "shm": "df -Pk /dev/shm",
    "numa memory": "cat /sys/devices/system/node/node*/meminfo",
    "numa balancing": "cat /proc/sys/kernel/numa_balancing",
    "kernel options": "cat /proc/cmdline",
    "cpus allowed": "grep Cpus_allowed_list /proc/self/status",
    "cpus online": "cat /sys/devices/system/cpu/online",
    "rdma": nic_survey(),
    "sockets": "cat /proc/net/tcp /proc/net/tcp6",
}


@dataclass(frozen=True)
class Section:
    """The output of one command (stdout and stderr) and its exit code."""

    code: int
    text: str

    @property
    def missing(self) -> bool:
        """Whether the program is not installed."""
        return self.code == 127


_NOTHING = Section(127, "")
_FREE_SPACE = 'd={}; while [ ! -e "$d" ]; do d=$(dirname "$d"); done; df -Pk "$d"'


class Survey(dict[str, Section]):
    """The sections of one survey, by name. A missing section is treated as a missing program."""

    def __missing__(self, name: str) -> Section:
        return _NOTHING


def local(argv: Sequence[str]) -> CompletedProgram:
    """Run a program on the local host and wait at most 150 s for it to exit."""
    return run_or_127(argv, timeout=150)


def survey(runner: Runner, sections: Mapping[str, str], *, directories: Sequence[str] = ()) -> Survey:
    """Survey a host with `runner`. Raises HostError if the script fails or prints no section.

    `sections` maps names to shell commands. The free space of each of the `directories` is measured at its nearest
    existing parent, in the section `disk DIRECTORY`.
    """
    commands = {**sections, **{f"disk {path}": _FREE_SPACE.format(shlex.quote(path)) for path in directories}}
    result = runner(("sh", "-c", script(commands)))
    sections_read = parse(result.stdout)
    if not result.ok or not sections_read:
        lines = (result.stderr or result.stdout).strip().splitlines()
        hint = "find out why `sh -c true` fails on that host"
        raise HostError("cannot inspect the host" + (f": {lines[-1]}" if lines else ""), hint=hint)
    return Survey(sections_read)


def script(commands: Mapping[str, str]) -> str:
    """Join commands into one POSIX shell script.

    For each command, the script prints a record separator, the name, a newline, the output, a unit separator and the
    exit code.
    """
    lines = [
        f"printf '\\036%s\\n' {shlex.quote(name)}; ( {command} ) 2>&1; printf '\\037%d' $?"
        for name, command in commands.items()
    ]
    return "LC_ALL=C; export LC_ALL\n" + "\n".join(lines) + "\n"


def parse(output: str) -> dict[str, Section]:
    """Parse the script's output into sections by name, without truncated sections."""
    return {
        match[1]: Section(int(match[3]), match[2])
        for match in re.finditer(r"\x1e([^\n]*)\n([^\x1e\x1f]*)\x1f(\d+)", output)
    }
