"""The command `deploy preflight`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.fabric import fabric_of_cluster
from orchestrator.cli.options import HostOption, Json, ProfileArgument, RuntimeOption, SetOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.console import terminal_width
from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.hosts.report import PreflightReport
from orchestrator.kernels.plan_coverage import report_coverage, warn_untuned
from orchestrator.planner.planning import load
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
        typer.Option("--baseline", metavar="FILE", help="compare the network between nodes with a recorded one"),
    ] = None,
    save_baseline: Annotated[
        Path | None, typer.Option("--save-baseline", metavar="FILE", help="record the network between nodes")
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
        findings = fabric_of_cluster(plan, home, baseline, save_baseline)
        report = PreflightReport(profile=report.profile, findings=(*report.findings, *findings))
    elif baseline or save_baseline:
        raise UsageError("a baseline needs several nodes", hint="name each node: `--host A --host B`")
    OUTPUT.show_or_print(report, lambda: report.to_text(width=terminal_width()), json=json)
    if not report.ready:
        failed = "1 check" if len(report.failed) == 1 else f"{len(report.failed)} checks"
        raise HostError(f"the host is not ready for `{report.profile}`: {failed} failed")
