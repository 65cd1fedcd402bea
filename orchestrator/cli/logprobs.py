"""The command `deploy logprobs`."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.bench.run import is_url
from orchestrator.cli.options import HostOption, Json, TargetArgument, require_kind, server_names
from orchestrator.core.console import note, print_data, print_json, terminal_width
from orchestrator.core.paths import Home
from orchestrator.evals.logprobs.run import ProbeOptions, keep, load_reference, reference_of, run_probe, save_reference
from orchestrator.servers.servers import api_key, open_servers
from orchestrator.servers.targets import side_of_server, side_of_url

AgainstOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME", help="a reference that --save wrote, or another server", autocompletion=server_names
    ),
]
SaveOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="write what the server says, as a reference for others")
]
LimitOption: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="NATS", min=1e-9, max=100, help="of a mean difference; default: by the reference's noise"),
]
LongestOption: TypeAlias = Annotated[
    int, typer.Option(metavar="TOKENS", min=64, max=8192, help="leave out longer texts")
]
OtherOption: TypeAlias = Annotated[
    bool, typer.Option("--other-checkpoint", help="compare with a reference of another checkpoint")
]


def command(
    target: TargetArgument,
    *,
    against: AgainstOption = None,
    save: SaveOption = None,
    limit: LimitOption = None,
    longest: LongestOption = 8192,
    other_checkpoint: OtherOption = False,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="the variable that holds a URL's key")
    ] = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Compare log-probabilities with a reference. Wrong kernels show by length and position.

    The prompts are passages of 64, 512, 2048 and 8192 tokens: alone, repeated, in a batch, half from cache, and after
    text that the server generated.
    """
    require_kind(target, url=is_url(target), of_url={"--api-key-env": api_key_env}, of_server={"--host": host})
    options = ProbeOptions(limit=limit, longest=longest, other_checkpoint=other_checkpoint)
    with ExitStack() as stack:
        servers = stack.enter_context(open_servers(Home.from_environment(), host))
        reference = load_reference(Path(against)) if against is not None and Path(against).is_file() else None
        side = side_of_url(target, key=api_key(api_key_env)) if is_url(target) else side_of_server(servers, target)
        if against is not None and reference is None:
            reference = reference_of(side_of_server(servers, against), options)
        report, said = run_probe(side, reference, options, against=against)
    keep(side, report)
    if json:
        print_json(report.to_dict())
    else:
        print_data(report.to_table(width=terminal_width()))
    if save is not None and report.ok:
        save_reference(said, save)
        note(f"the reference is `{save}`")
    report.require()
