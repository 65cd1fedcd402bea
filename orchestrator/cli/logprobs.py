"""The command `deploy logprobs`."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.bench.run import is_url
from orchestrator.cli.options import ApiKeyEnvOption, HostOption, Json, TargetArgument, require_kind, server_names
from orchestrator.core.console import note, terminal_width
from orchestrator.core.files import atomic_write
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.evals.logprobs.reference import load_reference, reference_to_json
from orchestrator.evals.logprobs.report import LogprobReport
from orchestrator.evals.logprobs.run import REPORT_FILE, LogprobOptions, measure_reference, run_logprobs
from orchestrator.servers.group import api_key
from orchestrator.servers.servers import open_servers
from orchestrator.servers.targets import side_of_server, side_of_url

ReferenceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME", help="reference file of `--save`, or another server", autocompletion=server_names
    ),
]
SaveOption: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="reference file to write")]
ToleranceOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="NATS", min=1e-9, max=100, help="allowed mean difference (nats); default: from the reference's noise"
    ),
]
MaxLengthOption: TypeAlias = Annotated[
    int, typer.Option(metavar="TOKENS", min=64, max=8192, help="maximum length of a prompt (tokens)")
]
OtherOption: TypeAlias = Annotated[
    bool, typer.Option("--allow-other-checkpoint", help="accept a reference of another checkpoint")
]

OUTPUT: Final = JsonOutput(LogprobReport)


def command(
    target: TargetArgument,
    *,
    reference: ReferenceOption = None,
    save: SaveOption = None,
    tolerance: ToleranceOption = None,
    max_length: MaxLengthOption = 8192,
    allow_other_checkpoint: OtherOption = False,
    api_key_env: ApiKeyEnvOption = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Compare log-probabilities with a reference. Wrong kernels show by length and position.

    The prompts are passages of 64, 512, 2048 and 8192 tokens: alone, repeated, in a batch, half from cache, and after
    text that the server generated.
    """
    require_kind(target, url=is_url(target), of_url={"--api-key-env": api_key_env}, of_server={"--host": host})
    options = LogprobOptions(tolerance=tolerance, max_length=max_length, allow_other_checkpoint=allow_other_checkpoint)
    with ExitStack() as stack:
        servers = stack.enter_context(open_servers(Home.from_environment(), host, name=target))
        saved = load_reference(Path(reference)) if reference is not None and Path(reference).is_file() else None
        side = side_of_url(target, key=api_key(api_key_env)) if is_url(target) else side_of_server(servers, target)
        if reference is not None and saved is None:
            saved = measure_reference(side_of_server(servers, reference), options)
        report, scores = run_logprobs(side, saved, options, reference_name=reference)
    OUTPUT.show_or_print(report, lambda: report.to_table(width=terminal_width()), json=json)
    if side.run is not None:
        side.run.save(REPORT_FILE, asdict(report))
    if save is not None and report.ok:
        atomic_write(save, reference_to_json(scores))
        note(f"wrote the reference to `{save}`")
    report.require()
