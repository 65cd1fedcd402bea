"""The command `deploy smoke`."""

from typing import Annotated, Final

import typer

from orchestrator.bench.run import is_url
from orchestrator.cli.options import (
    ApiKeyEnvOption,
    EngineOption,
    HostOption,
    Json,
    StrictKernels,
    TargetArgument,
    entry_option,
    require_kind,
)
from orchestrator.core.console import terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.planner.planning import load
from orchestrator.servers.group import api_key
from orchestrator.servers.servers import open_servers, resolve_server_name
from orchestrator.servers.start.verify import smoke_server, smoke_url
from orchestrator.verify.report import SmokeReport

OUTPUT: Final = JsonOutput(SmokeReport)


def command(
    target: TargetArgument,
    *,
    strict_kernels: StrictKernels = False,
    profile_: Annotated[
        str | None,
        entry_option("PROFILE", "--profile", "-p", help="profile that a URL must match; default: no profile"),
    ] = None,
    api_key_env: ApiKeyEnvOption = None,
    engine: EngineOption = None,
    soak: Annotated[
        float | None, typer.Option(metavar="MINUTES", min=0, help="minutes of mixed load; default: the profile's")
    ] = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Run the smoke test against a server. A check fails if a feature of the plan is missing."""
    target = resolve_server_name(target, Home.from_environment(), profile_, api_key_env, engine, host, strict_kernels)
    server_options = {"--strict-kernels": strict_kernels, "--host": host}
    require_kind(
        target,
        url=is_url(target),
        of_url={"--profile": profile_, "--api-key-env": api_key_env, "--engine": engine},
        of_server=server_options,
    )
    if is_url(target):
        plan = load(profile_).plan if profile_ else None
        ignore_sigpipe()  # the server counts and measures these requests
        report = smoke_url(target, plan=plan, key=api_key(api_key_env), engine=engine, soak=soak)
    else:
        with open_servers(Home.from_environment(), host, name=target) as servers:
            report = smoke_server(servers, target, strict_kernels=strict_kernels, soak=soak)
    OUTPUT.show_or_print(report, lambda: report.to_table(width=terminal_width()), json=json)
    report.require()
