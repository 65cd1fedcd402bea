"""Preflight of the fabric between the nodes of a plan."""

from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.hosts.fabric import Fabric, fabric_findings, read_fabric_nics
from orchestrator.hosts.fabric_baseline import FabricBaseline
from orchestrator.hosts.fabric_measure import FabricNode
from orchestrator.hosts.report import PreflightReport
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.plan.networks import Network
from orchestrator.plan.plan import Plan
from orchestrator.runtimes import runtime_class

# The address at which ssh reached this node: client, its port, server, its port (ssh(1), ENVIRONMENT).
_ADDRESS: Final = ("sh", "-c", 'set -- $SSH_CONNECTION; echo "$3"')


def preflight_fabric(
    plan: Plan,
    nodes: Sequence[FabricNode],
    home: Home,
    networks: Mapping[str, Network],
    baseline: FabricBaseline | None,
) -> tuple[PreflightReport, FabricBaseline]:
    """Run every check of the fabric; return the report and the figures. Raises HostError if a node does not answer."""
    fabric = Fabric(
        plan=plan,
        nodes=nodes,
        nics=read_fabric_nics(plan, nodes),
        networks=networks,
        python=runtime_class(plan.runtime).engine_python(plan, home),
        baseline=baseline,
    )
    return PreflightReport(profile=plan.profile, findings=tuple(fabric_findings(fabric))), fabric.figures


def ssh_node(name: str, url: str) -> FabricNode:
    """Return a node by its ssh URL. Raises UsageError, HostError."""
    runner = ssh_runner(url)
    done = runner(_ADDRESS)
    if not done.ok:
        raise HostError(f"cannot reach `{url}` with ssh", details=f"  {done.stderr.strip()}")
    return FabricNode(name=name, address=done.stdout.strip(), runner=runner)
