"""The command `deploy preflight`."""

from collections.abc import Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from orchestrator.cli.options import HostOption, Json, ProfileArgument, RuntimeOption, SetOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import print_data, say, terminal_width
from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.hosts.fabric_baseline import read_baseline, save_baseline
from orchestrator.hosts.fabric_measure import FabricNode
from orchestrator.hosts.report import Finding, PreflightReport, not_checked
from orchestrator.kernels.plan_coverage import report_coverage, warn_untuned
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, read_networks
from orchestrator.runtimes import runtime_class
from orchestrator.servers.start.fabric import preflight_fabric, ssh_node
from orchestrator.servers.start.host import preflight_host, resolve_host_ref

OUTPUT: Final = JsonOutput(PreflightReport)


def command(
    *,
    profile: ProfileArgument,
    host: HostOption = None,
    runtime: RuntimeOption = None,
    set_: SetOption = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Compare the network between nodes with a recorded one"),
    ] = None,
    save_baseline: Annotated[
        Path | None, typer.Option("--save-baseline", metavar="FILE", help="Record the network between nodes")
    ] = None,
    json: Json = False,
) -> None:
    """Check that a host is ready for a profile. Exits with 4 if it is not."""
    plan, home = load(profile, overrides=overridden(set_, runtime=runtime)).plan, Home.from_environment()
    host_ref = resolve_host_ref(plan.runtime, home, host)
    report_coverage(plan, home)
    warn_untuned(plan, home)
    report = preflight_host(plan, host_ref)
    if host is None:
        findings = _fabric_of_cluster(plan, home, baseline, save_baseline)
        report = PreflightReport(profile=report.profile, findings=(*report.findings, *findings))
    elif baseline or save_baseline:
        raise UsageError("a baseline is of several nodes", hint="name each node: `--host A --host B`")
    if json:
        OUTPUT.show(report)
    else:
        print_data(report.to_text(width=terminal_width()))
    if not report.ready:
        failed = "1 check" if len(report.failed) == 1 else f"{len(report.failed)} checks"
        raise HostError(f"the host is not ready for `{report.profile}`: {failed} failed")


def fabric_of_hosts(hosts: Mapping[str, str], params: Mapping[str, Any]) -> PreflightReport | None:
    """Check the network between hosts, given by label and URL; None if the plan is for one node, without a baseline.

    `params` are the parameters of the command.
    """
    overrides = overridden(params["set_"], runtime=params["runtime"])
    plan = load(params["profile"], overrides=overrides).plan
    baseline, save = params["baseline"], params["save_baseline"]
    if plan.layout.nodes == 1 and not baseline and not save:
        return None
    nodes = [ssh_node(label, url) for label, url in hosts.items()]
    return _fabric(plan, nodes, Home.from_environment(), baseline, save)


def _fabric_of_cluster(plan: Plan, home: Home, baseline: Path | None, save: Path | None) -> Sequence[Finding]:
    """Return the findings about the network between the nodes of the allocation of this shell, if there is one."""
    if plan.layout.nodes == 1 and not baseline and not save:
        return ()
    nodes = runtime_class(plan.runtime).allocated_nodes(environ)
    if len(nodes) > 1:
        return _fabric(plan, nodes, home, baseline, save).findings
    salloc = f"`salloc --nodes={max(plan.layout.nodes, 2)}`"
    runtime = " --runtime docker" if runtime_class(plan.runtime).cluster_managed else ""
    hint = f"`deploy preflight PROFILE{runtime} --host A --host B`; on Slurm {salloc}, and then this command again"
    return (not_checked("fabric", "no nodes named", "the network between the nodes", hint),)


def _fabric(
    plan: Plan, nodes: Sequence[FabricNode], home: Home, baseline: Path | None, save: Path | None
) -> PreflightReport:
    known = read_baseline(baseline) if baseline else None
    if save and not save.absolute().parent.is_dir():  # found before the measurement, not after it
        raise UsageError(f"cannot write `{save}`: no such directory", hint=f"`mkdir -p {save.parent}`")
    report, found = preflight_fabric(plan, nodes, home, read_networks(Catalog.of(home)), known)
    if save:
        save_baseline(save, found)
        say(f"recorded in `{save}`; compare later: `--baseline {save}`")
    return report
