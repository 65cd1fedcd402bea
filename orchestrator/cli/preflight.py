"""The command `deploy preflight`."""

from typing import Final

from orchestrator.cli.options import HostOption, Json, ProfileArgument, RuntimeOption, SetOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.console import print_data, terminal_width
from orchestrator.core.errors import HostError
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
    json: Json = False,
) -> None:
    """Check that a host is ready for a profile. Exits with 4 if it is not."""
    plan, home = load(profile, overrides=overridden(set_, runtime=runtime)).plan, Home.from_environment()
    host_ref = resolve_host_ref(plan.runtime, home, host)
    report_coverage(plan, home)
    warn_untuned(plan, home)
    report = preflight_host(plan, host_ref)
    if json:
        OUTPUT.show(report)
    else:
        print_data(report.to_text(width=terminal_width()))
    if not report.ready:
        failed = "1 check" if len(report.failed) == 1 else f"{len(report.failed)} checks"
        raise HostError(f"the host is not ready for `{report.profile}`: {failed} failed")
