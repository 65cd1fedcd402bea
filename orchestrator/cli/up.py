"""The command `deploy up`."""

from typing import Annotated, TypeAlias

import typer

from orchestrator.cli.options import (
    AcceptUntuned,
    HostOption,
    ImageOption,
    Json,
    OnOption,
    ProfileOrRunArgument,
    RevisionOption,
    SetOption,
    StrictKernels,
    run_names,
)
from orchestrator.cli.overrides import overridden
from orchestrator.cli.up_result import show_up
from orchestrator.core.console import print_data, say
from orchestrator.core.paths import Home
from orchestrator.servers.rollback import decided_before
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.up import preview, up

ReplaceOption: TypeAlias = Annotated[
    bool, typer.Option("--replace", help="stop a server of that name first; several replicas one by one")
]
OnlyOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="of several replicas, replace only so many, to look at them")
]
LeastGsm8kOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SCORE", help="of several replicas, replace the next when one has scored this"),
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="give up after this long; default: when the start makes no progress"),
]


def command(
    *,
    profile: ProfileOrRunArgument = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="an earlier start once more, by its own plan", autocompletion=run_names
        ),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="what PROFILE.lock.yaml, or the lock given as PROFILE, holds; or nothing")
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="the server's name; default: the profile's")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be started, and stop")] = False,
    replace: ReplaceOption = False,
    only: OnlyOption = None,
    least_gsm8k: LeastGsm8kOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave a failed server running, to look at it")] = False,
    stage: Annotated[bool, typer.Option("--stage/--no-stage", help="download a missing checkpoint, or refuse")] = True,
    accept_untuned: AcceptUntuned = False,
    strict_kernels: StrictKernels = False,
    timeout: TimeoutOption = None,
    revision: RevisionOption = None,
    image: ImageOption = None,
    host: HostOption = None,
    on: OnOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Bring a profile's server up: stage, build, start, wait, prove. Steps already done are skipped."""
    home = Home.from_environment()
    request = UpRequest(
        profile=profile or "",
        name=name,
        overrides=overridden(set_, revision=revision, on=on),
        host=host,
        image=image,
        replace=replace,
        only=only,
        least_gsm8k=least_gsm8k,
        keep=keep,
        stage=stage,
        accept_untuned=accept_untuned,
        strict_kernels=strict_kernels,
        timeout=timeout,
    )
    request = decided_before(request, home, run=from_, locked=locked)
    if dry_run:
        would = preview(request, home)
        print_data(would.files)
        say(would.steps)
        return
    show_up(up(request, home), json=json)
