"""`deploy preflight`: the checks of the network between the nodes of a plan."""

import re
from collections.abc import Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any, Final

from orchestrator.cli.fanout import HostResult
from orchestrator.cli.overrides import overridden
from orchestrator.core.errors import DeployError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.validation import read_model
from orchestrator.hosts.fabric import FabricBaseline
from orchestrator.hosts.fabric_measure import FabricNode
from orchestrator.hosts.gpu_checks import VRAM_IN_USE
from orchestrator.hosts.report import Finding, PreflightReport, fail, not_checked
from orchestrator.plan.networks import transfer_uses_rdma
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.runtimes import runtime_class
from orchestrator.servers.start.fabric import preflight_fabric, ssh_nodes

_NEEDED: Final = "the network between the nodes"


def fabric_of_hosts(results: Sequence[HostResult], params: Mapping[str, Any]) -> PreflightReport | None:
    """Check the network between the hosts of these results; return None for a plan with one node and no baseline.

    `params` are the parameters of the command. Nothing is measured if the GPUs of a host are busy.
    """
    hosts = {result.node.label: result.node.url for result in results}
    busy = [result.node.label for result in results if _vram_in_use(result)]
    try:
        overrides = overridden(params["set_"], runtime=params["runtime"])
        plan = load(params["profile"], overrides=overrides).plan
        baseline, save = params["baseline"], params["save_baseline"]
        if not _crosses_nodes(plan) and not baseline and not save:
            return None
        return _fabric(plan, ssh_nodes(hosts), Home.from_environment(), baseline, save, busy)
    except DeployError as error:
        return PreflightReport(profile=params["profile"] or "", findings=_failed(error))


def _vram_in_use(result: HostResult) -> bool:
    """Return whether the preflight report of a host, text or JSON, says that its VRAM is in use."""
    report = result.data
    if isinstance(report, dict):
        return any(
            (finding["check"], finding["level"]) == (VRAM_IN_USE, "fail") for finding in report.get("findings", ())
        )
    return re.search(rf"^fail +{VRAM_IN_USE} ", result.output, re.MULTILINE) is not None


def fabric_of_cluster(plan: Plan, home: Home, baseline: Path | None, save: Path | None) -> Sequence[Finding]:
    """Return the findings about the network between the nodes of this shell's allocation, if it has one."""
    if not _crosses_nodes(plan) and not baseline and not save:
        return ()
    try:
        nodes = runtime_class(plan.runtime).allocated_nodes(environ)
        if len(nodes) > 1:
            return _fabric(plan, nodes, home, baseline, save).findings
    except DeployError as error:
        return _failed(error)
    salloc = f"`salloc --nodes={max(2, *(server.layout.nodes for server in plan.servers.values()))}`"
    runtime = " --runtime docker" if runtime_class(plan.runtime).cluster_managed else ""
    hint = f"`deploy preflight PROFILE{runtime} --host A --host B`; on Slurm {salloc}, and then this command again"
    level = fail if baseline or save else not_checked
    return (level("fabric", "no nodes named", _NEEDED, hint),)


def _crosses_nodes(plan: Plan) -> bool:
    """Return whether a server spans several nodes, or roles on separate nodes send the KV cache by RDMA."""
    in_cluster = runtime_class(plan.runtime).cluster_managed  # its nodes are unknown
    separate_roles = bool(plan.roles) and plan.gateway is not None and not plan.gateway.one_node and not in_cluster
    return any(server.layout.nodes > 1 for server in plan.servers.values()) or (
        separate_roles and transfer_uses_rdma(plan)
    )


def _failed(error: DeployError) -> tuple[Finding, ...]:
    """Return an error as findings, so that the findings of other checks are still shown."""
    return tuple(
        fail("fabric", f"{item.location}: {item.message}".removeprefix(": "), _NEEDED, item.hint or error.hint)
        for item in error.problems_or_self()
    )


def _fabric(
    plan: Plan,
    nodes: Sequence[FabricNode],
    home: Home,
    baseline: Path | None,
    save: Path | None,
    busy: Sequence[str] = (),
) -> PreflightReport:
    recorded = read_model(baseline, FabricBaseline, str(baseline)) if baseline else None
    if save and not save.absolute().parent.is_dir():  # checked before the measurement, which takes minutes
        raise UsageError(f"cannot write `{save}`: no such directory", hint=f"`mkdir -p {save.parent}`")
    return preflight_fabric(plan, nodes, home, recorded, save, busy)
