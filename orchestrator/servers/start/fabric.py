"""Preflight of the fabric between the nodes of a plan."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from orchestrator.core.catalog import Catalog
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.hosts.fabric import Fabric, FabricBaseline, compare_nics, fabric_findings, read_fabric_nics
from orchestrator.hosts.fabric_measure import FabricNode
from orchestrator.hosts.head_address import rank_network
from orchestrator.hosts.report import Finding, PreflightReport, fail, info
from orchestrator.hosts.ssh import ssh_argv
from orchestrator.hosts.survey import Runner
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import read_networks
from orchestrator.runtimes import runtime_class


def preflight_fabric(
    plan: Plan,
    nodes: Sequence[FabricNode],
    home: Home,
    baseline: FabricBaseline | None,
    save: Path | None,
    busy: Sequence[str] = (),
) -> PreflightReport:
    """Run every check of the fabric; with `save`, save the figures as a baseline if none is missing.

    If each server has its own nodes, the largest server determines the GPUs per node. Nothing is measured while GPUs
    are `busy`. Raises HostError if a node does not answer, OSError if the file cannot be written.
    """
    if len(plan.gpus) > plan.hardware.gpus:
        plan = max(plan.servers.values(), key=lambda server: len(server.gpus))
    fabric = Fabric(
        plan=plan,
        nodes=nodes,
        nics=read_fabric_nics(plan, {node.name: node.run for node in nodes}),
        networks=read_networks(Catalog.of(home)),
        python=runtime_class(plan.runtime).engine_python(plan, home),
        baseline=baseline,
        busy=busy,
    )
    findings = [*fabric_findings(fabric)]
    if save and fabric.unmeasured:
        value = f"no baseline recorded: {', '.join(fabric.unmeasured)} not measured"
        hint = f"fix the problems that the network checks found; `{save}` is unchanged"
        findings.append(fail("baseline", value, "a measurement of every NIC and of all-reduce", hint))
    elif save:
        atomic_write(save, fabric.metrics.model_dump_json(indent=2) + "\n")
        findings.append(info("baseline", f"recorded in `{save}`; compare later: `--baseline {save}`"))
    return PreflightReport(profile=plan.profile, findings=tuple(findings))


def compare_hosts(plan: Plan, runners: Mapping[str, Runner], home: Home) -> tuple[Finding, ...]:
    """Compare the NICs of a server's hosts, without a measurement; `runners` are by host name. Raises HostError."""
    nics, networks = read_fabric_nics(plan, runners), read_networks(Catalog.of(home))
    return tuple(compare_nics(Fabric(plan=plan, nodes=(), nics=nics, networks=networks, python=None, baseline=None)))


def ssh_nodes(urls: Mapping[str, str]) -> list[FabricNode]:
    """Return the nodes of ssh URLs by name, each with an address that the next node reaches.

    All nodes reach the address of the first. Raises UsageError for a URL of another kind, HostError if a node does not
    reach another.
    """
    names, hosts = list(urls), list(urls.values())
    addresses = [rank_network(hosts[0], hosts[1:]).address] if len(hosts) > 1 else []
    addresses += [rank_network(host, [after]).address for host, after in pairwise(hosts[1:])]
    return [
        FabricNode(name=name, address=address, argv=partial(ssh_argv, host))
        for name, host, address in zip(names, hosts, [*addresses, ""], strict=True)
    ]
