"""Preflight of a plan's host, and the wait for its ports and VRAM."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.checkpoints.receipt import bytes_present
from orchestrator.checkpoints.verify import checkpoint_directory, needs_mtp, verify_checkpoint
from orchestrator.core.console import Progress, note, warn
from orchestrator.core.errors import HostError, UsageError, naming_host
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.core.subprocesses import quote
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import DiskNeed, HostAccess
from orchestrator.hosts.gpu_checks import VRAM_IN_USE
from orchestrator.hosts.gpus import read_gpus
from orchestrator.hosts.head_address import rank_network
from orchestrator.hosts.ports import plan_ports, port_holder
from orchestrator.hosts.report import Finding, Level, PreflightReport
from orchestrator.hosts.ssh import REMOTE_HOME, ssh_runner
from orchestrator.hosts.survey import Runner, local, survey
from orchestrator.hosts.venvs.venv import built_interpreter
from orchestrator.hosts.vram import wait_for_vram_release
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import read_plan
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef, Status
from orchestrator.servers.servers import Servers, open_servers
from orchestrator.servers.start.fabric import compare_hosts

_PORT_LIMIT, _PORT_INTERVAL = 30.0, 0.2  # seconds: time limit for a stopped server's port, and between checks


def resolve_host_ref(
    runtime: str,
    home: Home,
    host: str | None,
    environ: Mapping[str, str] = os.environ,
    *,
    rank_hosts: tuple[str, ...] = (),
) -> HostRef:
    """Return the host of a runtime: the remote host in `host` or the environment, otherwise this one.

    Raises UsageError if the runtime does not support remote hosts.
    """
    return HostRef(home=home, remote=runtime_class(runtime).resolve_host(host, environ), rank_hosts=rank_hosts)


def require_host_per_node(plan: Plan, host_ref: HostRef) -> None:
    """Raise UsageError if a runtime without a scheduler has more or fewer hosts than the server has nodes."""
    nodes, hosts = plan.layout.nodes, len(host_ref.nodes) if host_ref.remote else 0
    if not runtime_class(plan.runtime).supports_ssh or hosts == nodes or nodes == len(host_ref.nodes) == 1:
        return
    message = f"`layout.nodes` is {nodes}, and `--host` names {hosts} host{'' if hosts == 1 else 's'}"
    hint = f"repeat `--host ssh://NODE` for each of the {nodes} nodes, rank 0 first"
    raise UsageError(message, hint=hint)


def with_network(host_ref: HostRef) -> HostRef:
    """Return the hosts of a server with the network on which the ranks find rank 0. Raises HostError."""
    if host_ref.remote is None or not host_ref.rank_hosts:
        return host_ref
    network = rank_network(host_ref.remote, host_ref.rank_hosts)
    note(f"the other ranks reach {host_ref.remote} at {network.address}")
    return replace(host_ref, network=network)


def runner_for(host_ref: HostRef) -> Runner:
    """Return a function that runs a program on the host."""
    return ssh_runner(host_ref.remote) if host_ref.remote else local


def preflight_host(
    plan: Plan,
    host_ref: HostRef,
    *,
    checkpoint: bool = True,
    stage: bool = True,
    freed: frozenset[int] = frozenset(),
    rank: int = 0,
) -> PreflightReport:
    """Run all preflight checks of a plan on its host.

    The checkpoint is verified only with `checkpoint`, and only on this host. It needs disk space only with `stage`.
    `freed` are the ports of a server that stops first; `rank` is the rank of the host.
    """
    runner, kind = runner_for(host_ref), runtime_class(plan.runtime)
    if host_ref.rank_hosts:
        findings = list[Finding]()
        for number, item in enumerate(host_ref.nodes):
            with naming_host(str(item.remote)):
                report = preflight_host(plan, item, stage=stage, freed=freed, rank=number)
            findings += (replace(finding, value=f"{item.remote}: {finding.value}") for finding in report.findings)
        fabric = compare_hosts(plan, {node.remote or "": runner_for(node) for node in host_ref.nodes}, host_ref.home)
        return PreflightReport(profile=plan.profile, findings=(*findings, *fabric))
    if kind.cluster_managed:
        return PreflightReport(profile=plan.profile, findings=tuple(kind.remote_checks(plan)))
    access = HostAccess(
        runner=runner,
        environ=os.environ,
        spaces=(*(_weights_space(plan, host_ref) if stage else ()), *kind.disk_needs(plan, runner)),
        checkpoint=_checkpoint(plan, host_ref.home) if checkpoint and host_ref.remote is None else None,
        in_container=kind.in_container,
        interpreter=None if kind.in_container else built_interpreter(plan.engine, host_ref.home),
        server_on=partial(_server_on, host_ref),
        freed=freed,
        rank=rank,
    )
    return preflight(plan, access, kind.checks, local=kind.is_local)


def require_host(plan: Plan, servers: Servers, name: str, host_ref: HostRef, *, stage: bool) -> PreflightReport:
    """Run preflight before a build or download for the server `name`. Raises HostError.

    A running server of this name does no harm: its stop frees its ports and VRAM. With `stage`, a missing checkpoint
    will be downloaded.
    """
    report = preflight_host(plan, host_ref, checkpoint=False, stage=stage, freed=_ports_of(servers, name))
    _warn(report.findings)
    report.require(ignore={VRAM_IN_USE})
    return report


def require_ready_host(plan: Plan, host_ref: HostRef, before: PreflightReport | None = None) -> PreflightReport:
    """Run preflight and wait until the VRAM is free. Raises HostError.

    Warnings in the earlier report `before` are not repeated. A cluster is not asked the same again.
    """
    if before is not None and runtime_class(plan.runtime).cluster_managed:
        return before
    report, text = preflight_host(plan, host_ref), set(before.findings) if before else set()
    _warn(finding for finding in report.findings if finding not in text)
    report.require(ignore={VRAM_IN_USE})  # `wait_for_vram` waits until it is free
    wait_for_vram(plan, host_ref)
    return report


def _warn(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.level is Level.WARN:
            warn(f"{finding.check}: {finding.value}; needed: {finding.needed}", hint=finding.hint)


def _ports_of(servers: Servers, name: str) -> frozenset[int]:
    """Return the ports of this host that the server `name` frees when it stops."""
    local_servers = [server for server in servers.find(name) if runtime_class(server.runtime).is_local]
    plans = (read_plan(servers.run_of(server)) for server in local_servers)
    ports = {
        port
        for plan in plans
        if plan is not None
        for rank in range(plan.layout.nodes)
        for _, port in plan_ports(plan, rank=rank)
    }
    return frozenset(ports | {port for server in local_servers if (port := urlsplit(server.url).port) is not None})


def _server_on(host_ref: HostRef, port: int) -> str | None:
    """Return the name of the server that listens on a port; None if `deploy` did not start it."""
    with open_servers(host_ref.home, host_ref.remote) as servers:
        for server in servers.find():
            if server.url.endswith(f":{port}") and server.state.status is Status.RUNNING:
                return server.name
    return None


def wait_for_vram(plan: Plan, host_ref: HostRef) -> None:
    """Wait until the VRAM of the plan's GPUs is free, and show the GPUs with VRAM in use.

    In a cluster, return at once, because the runtime's stop has already waited.
    """
    if plan.hardware.vendor == "cpu" or not runtime_class(plan.runtime).is_local:
        return
    with Progress() as progress:
        for node in host_ref.nodes:
            wait_for_vram_release(
                partial(read_gpus, plan.hardware.vendor, runner_for(node)),
                gpus=plan.gpus,
                progress=lambda text, seconds: progress.update(text, transient=f"{seconds:.0f} s"),
            )


def wait_until_released(plan: Plan, host_ref: HostRef) -> None:
    """Wait until the ports and the VRAM of a stopped server are free. Raises HostError with their holder."""
    if not runtime_class(plan.runtime).is_local:
        return
    multi_node = bool(host_ref.rank_hosts)
    for rank, node in enumerate(host_ref.nodes):
        for _, port in plan_ports(plan, rank=rank):
            holder = poll_until(
                lambda holder: holder is None,
                partial(port_holder, port, runner_for(node)),
                timeout=_PORT_LIMIT,
                interval=_PORT_INTERVAL,
            )
            if holder is not None:
                location = f" on {node.remote}" if multi_node else ""
                hint = "stop that program, or use another port: `--set server.port=PORT`"
                raise HostError(f"port {port}{location} is still in use by {holder}", hint=hint)
    wait_for_vram(plan, host_ref)


def _checkpoint(plan: Plan, home: Home) -> Callable[[], tuple[str, int]] | None:
    directory = checkpoint_directory(plan.model, home)
    if plan.model.checkpoint.source == "generated" and not directory.exists():
        return None  # the start generates the checkpoint

    def verify() -> tuple[str, int]:
        summary = verify_checkpoint(directory, plan.model, speculative=needs_mtp(plan), sglang=plan.engine.version)
        return str(summary), summary.size

    return verify


def _weights_space(plan: Plan, host_ref: HostRef) -> Iterator[DiskNeed]:
    """Yield the disk space for the part of a checkpoint that has to be downloaded. Raises HostError."""
    if plan.model.checkpoint.source != "hub":
        return
    if host_ref.remote is not None:
        path = f"{REMOTE_HOME}/{quote([str(checkpoint_directory(plan.model, Home(Path())))])}"
        list_sizes = f"echo {path}; find -L {path} -type f -exec stat -c %s {{}} + 2>/dev/null"
        printed = survey(runner_for(host_ref), {"weights": list_sizes})["weights"].text.splitlines()
        directory, present = printed[0], sum(map(int, printed[1:]))
    else:
        directory = str(checkpoint_directory(plan.model, host_ref.home))
        present = bytes_present(Path(directory))
    yield DiskNeed(purpose="weights", directory=directory, size=max(plan.model.weight_bytes - present, 0))
