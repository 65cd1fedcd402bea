"""One look at a machine: a single shell script, run wherever the machine is, and its output cut into sections.

One round trip instead of thirty: the same script runs here, through ssh or inside a probe container, and what it
printed can be recorded and read again in a test. To learn one more thing of a machine, add one entry below.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import CompletedProgram, run_or_127

Runner = Callable[[Sequence[str]], CompletedProgram]  # runs a program on the machine in question, to its end

MACHINE_SECTIONS: Mapping[str, str] = {
    "user": "id -u; id -un",
    "devices": "for d in /dev/kfd /dev/dri/renderD*; do [ -e $d ] || continue; "
    '[ -r $d ] && [ -w $d ] && m=open || m=closed; stat -c "%n %g %G $m" $d; done',
    "memlock": "ulimit -l",
    "shm": "df -Pk /dev/shm",
    "numa balancing": "cat /proc/sys/kernel/numa_balancing",
    "kernel options": "cat /proc/cmdline",
    "cpus allowed": "grep Cpus_allowed_list /proc/self/status",
    "cpus online": "cat /sys/devices/system/cpu/online",
    "cores": "cat /sys/devices/system/cpu/cpu[0-9]*/topology/core_cpus_list | sort -u | wc -l",
    "sockets": "cat /proc/net/tcp /proc/net/tcp6",
}


@dataclass(frozen=True)
class Section:
    """What one command printed (both streams) and its exit code."""

    code: int
    text: str

    @property
    def missing(self) -> bool:
        """Whether there is no such program."""
        return self.code == 127


_NOTHING = Section(127, "")


@dataclass(frozen=True)
class Survey:
    """The sections of one look, by name."""

    sections: Mapping[str, Section]

    def __getitem__(self, name: str) -> Section:
        return self.sections.get(name, _NOTHING)


def local(argv: Sequence[str]) -> CompletedProgram:
    """The runner of this machine."""
    return run_or_127(argv, timeout=150)


def survey(runner: Runner, sections: Mapping[str, str], *, directories: Sequence[str] = ()) -> Survey:
    """Look at a machine. Raises HostError where the machine cannot be looked at at all.

    `sections` are shell commands by name; `directories` are measured for free space, each at its nearest parent that
    exists.
    """
    commands = {**sections, **{f"disk {path}": _free_space(path) for path in directories}}
    result = runner(("sh", "-c", script(commands)))
    found = parse(result.stdout)
    if not result.ok or not found:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise HostError(
            "cannot look at the machine" + (f": {said[-1]}" if said else ""),
            hint="run `sh -c true` there the same way and see what it says",
        )
    return Survey(found)


def script(commands: Mapping[str, str]) -> str:
    """The commands as one POSIX script: record separator, name, output, unit separator, exit code."""
    lines = [
        f"printf '\\036%s\\n' {shlex.quote(name)}; ( {command} ) 2>&1; printf '\\037%d' $?"
        for name, command in commands.items()
    ]
    return "LC_ALL=C; export LC_ALL\n" + "\n".join(lines) + "\n"


def parse(output: str) -> dict[str, Section]:
    """The sections in what the script printed; one that was cut off in the middle is left out."""
    return {
        match[1]: Section(int(match[3]), match[2])
        for match in re.finditer(r"\x1e([^\n]*)\n([^\x1e\x1f]*)\x1f(\d+)", output)
    }


def _free_space(path: str) -> str:
    return f'd={shlex.quote(path)}; while [ ! -e "$d" ]; do d=$(dirname "$d"); done; df -Pk "$d"'
