"""`deploy profiles`, `deploy show`, `deploy render`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.options import GiveOption, Json, ProfileOption, SetOption, named_files
from orchestrator.core.console import out, out_json, say

if TYPE_CHECKING:
    from orchestrator.plan import Plan

ProfileArgument: TypeAlias = Annotated[str, typer.Argument(metavar="PROFILE", help="a profile's name, or a file")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(profiles)
    app.command()(show)
    app.command()(render)


def profiles(*, json: Json = False) -> None:
    """List the profiles that ship with the tool."""
    from orchestrator.commands.planning import load, profile_names
    from orchestrator.core.console import table

    plans = [load(name).plan for name in profile_names()]
    if json:
        out_json([_summary(plan) for plan in plans])
        return
    rows = [[str(value) for value in _summary(plan).values()] for plan in plans]
    out(table(list(_summary(plans[0])), rows))


def show(
    profile: ProfileArgument,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="every value with its file and line, and its origin")
    ] = False,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Show what a profile decides."""
    from orchestrator.commands.explain import explained, explained_table
    from orchestrator.commands.planning import load

    loaded = load(profile, overrides=set_ or ())
    if explain:
        rows = explained(loaded)
        if json:
            out_json([row.to_dict() for row in rows])
        else:
            out(explained_table(rows))
    elif json:
        out_json({**loaded.plan.to_dict(), "digest": loaded.plan.digest})
    else:
        out(loaded.plan.to_json())


def render(
    *,
    profile: ProfileOption,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write the files there instead of printing them")
    ] = None,
    set_: SetOption = None,
    give: GiveOption = None,
) -> None:
    """Render the server command, the image's build context and the `docker run` line; starts nothing.

    Files come from the profile and the options alone: a table that this machine holds is named with `--give`.
    """
    from orchestrator.commands.artifacts import plan_given, render_artifacts, rendered_files
    from orchestrator.commands.runs import write_files

    files = rendered_files(render_artifacts(*plan_given(profile, set_ or (), named_files("--give", give))))
    if output is None:
        for file in files:
            out(f"==> {file.path} <==\n{file.content.decode(errors='replace')}")
        return
    write_files(output, files)
    for file in files:
        say(f"wrote {output / file.path}")


def _summary(plan: "Plan") -> dict[str, object]:
    layout = plan.layout
    return {
        "profile": plan.profile,
        "hardware": plan.hardware.name,
        "model": plan.model.name,
        "engine": plan.engine.name,
        "layout": f"tp{layout.tp}" + (f" dp{layout.dp}" if layout.dp > 1 else ""),
        "runtime": plan.runtime,
        "description": plan.description,
    }
