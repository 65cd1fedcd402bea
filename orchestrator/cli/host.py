"""`deploy preflight`, `deploy stage`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import HostOption, Json, ProfileOption, SetOption
from orchestrator.core.console import Progress, note, out, out_json, say

if TYPE_CHECKING:
    from orchestrator.weights import DownloadProgress


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(preflight)
    app.command()(stage)


def preflight(*, profile: ProfileOption, set_: SetOption = None, host: HostOption = None, json: Json = False) -> None:
    """Check whether a machine is ready for a profile. This one, or a far one; exit code 4 where it is not."""
    from orchestrator.commands.machine import inspect_host, place_of
    from orchestrator.commands.planning import load
    from orchestrator.core.errors import HostError
    from orchestrator.core.paths import Home

    plan = load(profile, overrides=set_ or ()).plan
    report = inspect_host(plan, place_of(plan, Home.from_environment(), host))
    if json:
        out_json(report.to_dict())
    else:
        out(report.to_text())
    if not report.ready:
        raise HostError(f"this machine is not ready for `{report.profile}`: {len(report.failed)} checks failed")


def stage(
    *,
    profile: ProfileOption,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="put it there instead of under the tool's home")
    ] = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Download a profile's checkpoint and verify all of it. Resumes where it was cut; a local one is only verified."""
    import os

    from orchestrator.commands.planning import load
    from orchestrator.core.paths import Home
    from orchestrator.weights import Hub, checkpoint_directory, needs_mtp, stage_checkpoint

    plan = load(profile, overrides=set_ or ()).plan
    target = (directory or checkpoint_directory(plan.model, Home.from_environment())).absolute()
    hub = Hub(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN"))
    progress = Progress()
    try:
        verified = stage_checkpoint(
            plan.model, target, speculative=needs_mtp(plan), hub=hub, progress=lambda arrived: _show(progress, arrived)
        )
    finally:
        progress.done()
    if json:
        out_json({**verified.__dict__, "directory": str(verified.directory)})
        return
    say(f"{verified.directory} is whole: {verified}")
    if directory is not None and plan.model.source.kind == "hub":
        note(f"serve from there: `--set model.origin.kind=directory --set model.origin.location={target}`")


def _show(progress: Progress, arrived: "DownloadProgress") -> None:
    share = arrived.done / arrived.total if arrived.total else 1.0
    text = f"{share:4.0%} of {arrived.total / 1e9:.1f} GB"
    left = f", {arrived.eta / 60:.0f} min to go" if arrived.eta is not None else ""
    progress.update(text, transient=f"{arrived.rate / 1e6:.0f} MB/s{left}")
