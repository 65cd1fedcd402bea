"""The command `deploy lock`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import Json, ProfileArgument, RevisionOption, SetOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.console import info, note
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.planner.lock import lock_output, resolve, write_lock


@dataclass(frozen=True, kw_only=True)
class WrittenLock:
    """The lockfile; `unknown` are the values that it does not pin, with the reason."""

    lock: Path
    unknown: dict[str, str]


OUTPUT: Final = JsonOutput(WrittenLock)


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

    Queries the hub and the image's registry. A value that neither knows is `unknown`, with the reason.
    """
    path = lock_output(output, profile)
    lock = resolve(profile, overridden(set_, revision=revision), Home.from_environment())
    write_lock(path, lock)
    if json:
        OUTPUT.show(WrittenLock(lock=path, unknown=dict(lock.unknown)))
        return
    info(f"wrote {path}")
    for name, reason in lock.unknown.items():
        note(f"the lockfile does not pin `{name}`: {reason}")
