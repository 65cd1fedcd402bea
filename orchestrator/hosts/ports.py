"""The TCP ports of a plan, and the process that listens on a port."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import PurePath
from textwrap import shorten
from typing import TYPE_CHECKING

from orchestrator.hosts.survey import Runner, local

if TYPE_CHECKING:  # importing it takes 15 MB, which `deploy watch` does not need
    from orchestrator.plan.plan import Plan

_MAX_SHOWN = 60  # characters of a command line in a message


@dataclass(frozen=True, kw_only=True)
class PortHolder:
    """The process that listens on a port; `pid` and `command` are None if another user owns it."""

    pid: int | None
    command: str | None

    def __str__(self) -> str:
        if self.pid is None:
            return "a process of another user"
        return f"{_short(self.command) if self.command else 'a process'} (pid {self.pid})"


def _short(command: str) -> str:
    """Shorten a command line to the program's name and the arguments that fit."""
    program, _, arguments = command.partition(" ")
    return shorten(f"{PurePath(program).name} {arguments}".rstrip(), _MAX_SHOWN, placeholder=" …")


def plan_ports(plan: Plan, *, rank: int = 0) -> tuple[tuple[str, int], ...]:
    """Return the fixed ports of one rank as pairs of purpose and port. See `engine.launch.rank_argv`.

    sglang picks its other ports among the free ones at startup.
    """
    fixed_ports = [(fixed.option, fixed.port) for fixed in plan.serving.ports if fixed.port is not None]
    if rank:
        return (("server", plan.server.port + rank), *fixed_ports)
    ports = [("server", plan.server.port)]
    if plan.gateway is not None:
        ports += [(name.replace("-", " "), server.server.port) for name, server in plan.servers.items()]
        ports += [("bootstrap of prefill", port) for role in plan.roles for port in role.bootstrap_ports]
        ports += [("metrics of the gateway", plan.gateway.metrics_port)]
    ports += [("ranks", plan.rank_port)] if plan.layout.nodes > 1 else []
    return (*ports, *fixed_ports)


def free_port() -> int:
    """Return a TCP port that is free on this host's loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_holder(port: int, runner: Runner = local) -> PortHolder | None:
    """Return the process that listens on TCP `port`; None if the port is free."""
    table = runner(("cat", "/proc/net/tcp", "/proc/net/tcp6")).stdout
    inodes = re.findall(rf"^\s*\d+: \w+:{port:04X} \w+:\w{{4}} 0A (?:\S+ +){{5}}(\d+)", table, re.MULTILINE)
    if not inodes:
        return None
    tests = [word for inode in inodes for word in ("-o", "-lname", f"socket:[[]{inode}]")][1:]
    result = runner(
        ("find", "/proc", "-mindepth", "3", "-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*", "(", *tests, ")")
    )
    pids = sorted({int(pid) for pid in re.findall(r"^/proc/(\d+)/fd/", result.stdout, re.MULTILINE)})
    if not pids:
        return PortHolder(pid=None, command=None)
    command = runner(("cat", f"/proc/{pids[0]}/cmdline")).stdout
    return PortHolder(pid=pids[0], command=command.replace("\0", " ").strip() or None)
