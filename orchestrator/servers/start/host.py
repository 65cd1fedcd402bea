"""Is the machine ready for a plan, and free again after it?"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from urllib.parse import urlsplit

from orchestrator.checkpoints.receipt import bytes_present
from orchestrator.checkpoints.verify import checkpoint_directory, needs_mtp, verify_checkpoint
from orchestrator.core.console import Progress, warn
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import DiskNeed, HostAccess
from orchestrator.hosts.gpu_checks import VRAM_IN_USE
from orchestrator.hosts.gpus import read_gpus
from orchestrator.hosts.ports import plan_ports, port_holder
from orchestrator.hosts.report import Finding, Level, PreflightReport
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.hosts.survey import Runner, local
from orchestrator.hosts.venvs.venv import built_interpreter
from orchestrator.hosts.vram import wait_for_vram_release
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import read_plan
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef, Status
from orchestrator.servers.servers import Servers, open_servers

_PORT_LIMIT, _PORT_PAUSE = 30.0, 0.2  # seconds a stopped server's port may stay taken, and between two looks


def host_ref(runtime: str, home: Home, host: str | None, environ: Mapping[str, str] = os.environ) -> HostRef:
    """Where a runtime runs servers: here, or on the far machine that `host` or the environment name.

    Raises UsageError for a far machine and a runtime that only knows this one.
    """
    return HostRef(home=home, remote=runtime_class(runtime).resolve_host(host, environ))


def runner_for(place: HostRef) -> Runner:
    """How to run a program there."""
    return ssh_runner(place.remote) if place.remote else local


def preflight_host(
    plan: Plan,
    place: HostRef,
    environ: Mapping[str, str] = os.environ,
    *,
    checkpoint: bool = True,
    stage: bool = True,
    freed: frozenset[int] = frozenset(),
) -> PreflightReport:
    """Run every preflight check of a plan, here or on a far machine (whose checkpoint is not looked at).

    Without `checkpoint` it is not looked at here either, and without `stage` nothing needs room for it. `freed` are
    ports of a server that is stopped first.
    """
    runner, kind = runner_for(place), runtime_class(plan.runtime)
    if kind.cluster_managed:
        return PreflightReport(profile=plan.profile, findings=tuple(kind.remote_checks(plan)))
    access = HostAccess(
        runner=runner,
        environ=environ,
        spaces=()
        if place.remote
        else (*(_weights_space(plan, place.home) if stage else ()), *kind.disk_needs(plan, runner)),
        checkpoint=_checkpoint(plan, place.home) if checkpoint and place.remote is None else None,
        contained=kind.in_container,
        interpreter=None if kind.in_container else built_interpreter(plan.engine, place.home),
        server_on=partial(_server_on, place),
        freed=freed,
    )
    return preflight(plan, access, kind.checks(), here=kind.is_local)


def require_host(plan: Plan, servers: Servers, name: str, place: HostRef, *, stage: bool) -> PreflightReport:
    """The host passes preflight before anything is built or downloaded for a server of that name. Raises HostError.

    What runs under the name goes on running: its ports, and the VRAM that it holds, are free once it is stopped.
    `stage` says that a missing checkpoint will be downloaded.
    """
    report = preflight_host(plan, place, checkpoint=False, stage=stage, freed=_ports_of(servers, name))
    _warn(report.findings)
    report.require(but={VRAM_IN_USE})
    return report


def require_ready_host(plan: Plan, place: HostRef, before: PreflightReport | None = None) -> PreflightReport:
    """The machine passes preflight, and the GPUs have drained of whoever used them last. Raises HostError.

    What the report `before` has warned of is not repeated.
    """
    report, told = preflight_host(plan, place), set(before.findings) if before else set()
    _warn(finding for finding in report.findings if finding not in told)
    report.require(but={VRAM_IN_USE})  # that one is waited for
    wait_for_vram(plan, place)
    return report


def _warn(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.level is Level.WARN:
            warn(f"{finding.check}: {finding.found}; needed: {finding.needed}", hint=finding.hint)


def _ports_of(servers: Servers, name: str) -> frozenset[int]:
    """The ports of this machine that are free once what runs under a name is stopped."""
    here = [handle for handle in servers.find(name) if runtime_class(handle.runtime).is_local]
    plans = (read_plan(servers.run_of(handle)) for handle in here)
    own = {port for plan in plans if plan is not None for _, port in plan_ports(plan)}
    return frozenset(own | {port for handle in here if (port := urlsplit(handle.url).port) is not None})


def _server_on(place: HostRef, port: int) -> str | None:
    """The server of ours that listens there, on a port that somebody holds."""
    with open_servers(place.home, place.remote) as servers:
        for handle in servers.find():
            if handle.url.endswith(f":{port}") and servers.runtime(handle).state(handle).status is Status.RUNNING:
                return handle.name
    return None


def wait_for_vram(plan: Plan, place: HostRef) -> None:
    """Wait until the plan's GPUs have given back the VRAM of a server that is gone, showing which still hold some.

    Where the server runs on other machines, the runtime's own stop has waited.
    """
    if plan.hardware.vendor == "cpu" or not runtime_class(plan.runtime).is_local:
        return
    runner, progress = runner_for(place), Progress()
    try:
        wait_for_vram_release(
            lambda: read_gpus(plan.hardware.vendor, runner),
            gpus=plan.gpus,
            progress=lambda text, seconds: progress.update(text, transient=f"{seconds:.0f} s"),
        )
    finally:
        progress.done()


def wait_until_released(
    plan: Plan,
    place: HostRef,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the ports and the VRAM of a stopped server are free. Raises HostError with who holds them."""
    if not runtime_class(plan.runtime).is_local:
        return
    runner = runner_for(place)
    for _, port in plan_ports(plan):
        holder = poll_until(
            lambda holder: holder is None,
            partial(port_holder, port, runner),
            within=_PORT_LIMIT,
            pause=_PORT_PAUSE,
            clock=clock,
            sleep=sleep,
        )
        if holder is not None:
            raise HostError(f"port {port} is still held by {holder}", hint="another program took it, or stop that one")
    wait_for_vram(plan, place)


def _checkpoint(plan: Plan, home: Home) -> Callable[[], tuple[str, int]] | None:
    directory = checkpoint_directory(plan.model, home)
    if plan.model.checkpoint.source == "generated" and not directory.exists():
        return None  # made on the way up

    def verify() -> tuple[str, int]:
        found = verify_checkpoint(directory, plan.model, speculative=needs_mtp(plan), sglang=plan.engine.version)
        return str(found), found.size

    return verify


def _weights_space(plan: Plan, home: Home) -> Iterator[DiskNeed]:
    directory = checkpoint_directory(plan.model, home)
    if plan.model.checkpoint.source == "hub":
        size = max(plan.model.weight_bytes - bytes_present(directory), 0)
        yield DiskNeed(purpose="weights", directory=str(directory), size=size)
