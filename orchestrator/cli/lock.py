"""The command `deploy lock`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, ProfileArgument, RevisionOption, SetOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.console import note, print_json, say
from orchestrator.core.paths import Home
from orchestrator.planner.lock import lock_output, resolve, write_lock


def command(
    *,
    profile: ProfileArgument,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="lockfile to write; default: PROFILE.lock.yaml")
    ] = None,
    revision: RevisionOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Pin image, checkpoint, patches and tables. `up --locked` starts exactly what the lockfile pins.

    The hub and the image's registry are asked. A value that neither knows is `unknown`, with the reason.
    """
    path = lock_output(output, profile)
    found = resolve(profile, overridden(set_, revision=revision), Home.from_environment())
    write_lock(path, found)
    if json:
        print_json({"lock": str(path), "unknown": dict(found.unknown)})
        return
    say(f"wrote {path}")
    for what, why in found.unknown.items():
        note(f"the lockfile does not pin `{what}`: {why}")
