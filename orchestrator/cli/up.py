"""The command `deploy up`."""

from pathlib import Path
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
from orchestrator.cli.rendered import rendered_dicts, write_rendered
from orchestrator.cli.up_result import show_up
from orchestrator.core.console import print_data, print_json
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.servers.rollback import decided_before
from orchestrator.servers.start.preview import Preview, preview
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.up import up

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the steps and warnings; start nothing")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="with `--dry-run`, write all files to a folder")
    ] = None,
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
    """Start a server from a profile and verify it. Steps already done are skipped."""
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
    if output is not None and not dry_run:
        raise UsageError("`--output` is for `--dry-run`", hint="a start keeps its files in its run directory")
    request = decided_before(request, home, run=from_, locked=locked)
    if dry_run:
        _show_preview(preview(request, home), output, json=json)
        return
    show_up(up(request, home), json=json)


def _show_preview(found: Preview, output: Path | None, *, json: bool) -> None:
    """Print the steps, then the warnings; files only as JSON, or into the folder `output`."""
    if json:
        if output is not None:
            write_rendered(output, found.files)
        print_json({**found.to_dict(), "files": rendered_dicts(found.files, output)})
        return
    print_data(found.to_table())
    found.report()
    if output is not None:
        write_rendered(output, found.files)
