"""The command `deploy monitoring`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import Json, SetOption, WorkloadOption, entry_option, server_names
from orchestrator.core.console import info, note
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import RelativePath
from orchestrator.monitoring.files import monitoring_files, skipped_rules
from orchestrator.monitoring.request import MonitoringRequest, monitored
from orchestrator.runs.run_dir import write_files


@dataclass(frozen=True, kw_only=True)
class MonitoringOutput:
    """The written files; `skipped` are the skipped series and alerts, each with the reason."""

    server: str
    files: list[Path]
    skipped: tuple[str, ...]


OUTPUT: Final = JsonOutput(MonitoringOutput)


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="running server", autocompletion=server_names)
    ] = None,
    *,
    output: Annotated[Path, typer.Option(metavar="DIR", help="directory for the files")],
    profile_: Annotated[
        str | None, entry_option("PROFILE", "--profile", "-p", help="profile, instead of a running server")
    ] = None,
    workload: WorkloadOption = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="ttft_p95_s, cache_hit_rate or accept_length to expect (may be repeated)"
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="address that Prometheus scrapes; default: the server's")
    ] = None,
    gpu_exporter: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="address of AMD's device-metrics-exporter or NVIDIA's dcgm-exporter"),
    ] = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Write Prometheus rules and a Grafana dashboard."""
    request = MonitoringRequest(
        name=name,
        profile=profile_,
        overrides=tuple(set_ or ()),
        workload=workload,
        expected=tuple(expect or ()),
        target=target,
        gpu_exporter=gpu_exporter,
    )
    server = monitored(request, Home.from_environment())
    files, missing = monitoring_files(server), tuple(skipped_rules(server))
    write_files(output, files)
    if json:
        paths = [output / RelativePath(file.path) for file in files]
        OUTPUT.show(MonitoringOutput(server=server.name, files=paths, skipped=missing))
        return
    for file in files:
        info(f"wrote {output / RelativePath(file.path)}")
    for text in missing:
        note(text)
