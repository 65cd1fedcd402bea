"""The command `deploy onboard engine`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.onboard.options import FactOption, NameOption, ReplaceOption
from orchestrator.cli.options import HostOption, Json
from orchestrator.core.console import note, print_data, print_json, say, table, terminal_width
from orchestrator.core.paths import Home
from orchestrator.planner.add.engine import OnboardedEngine, next_command, onboard_engine
from orchestrator.planner.add.engine_sources import EngineRequest


def command(
    what: Annotated[
        str,
        typer.Argument(metavar="VERSION|IMAGE", help="a version of sglang, such as 0.5.20, or an image that is here"),
    ],
    *,
    name: NameOption = None,
    set_: FactOption = None,
    wheel: Annotated[Path | None, typer.Option(metavar="FILE", help="that version's; default: downloaded")] = None,
    python: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an interpreter with sglang's dependencies; default: our own")
    ] = None,
    host: HostOption = None,
    replace: ReplaceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show it, and write nothing")] = False,
    json: Json = False,
) -> None:
    """Write an engine's file, and the table of its options. They go into `$DEPLOY_HOME/profiles/engines`.

    Patches are told from its sources; of an image its platform, its aiter and the tables of tuned kernels are read.
    What it does not say is asked for by key.
    """
    home = Home.from_environment()
    request = EngineRequest(
        what=what,
        name=name,
        overrides=set_ or (),
        wheel=wheel,
        python=python,
        host=host,
        replace=replace,
        dry_run=dry_run,
    )
    found = onboard_engine(request, home)
    following = "" if dry_run else next_command(found, home)
    if json:
        print_json({**found.to_dict(), "written": not dry_run, "next": following})
    else:
        _show_engine(found, following, written=not dry_run)


def _show_engine(found: OnboardedEngine, following: str, *, written: bool) -> None:
    print_data(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.file.notes:
        note(text)
    if written:
        say(f"wrote {found.file.path}")
        if following:
            say(f"next: `{following}`")
        else:
            note(f"no profile of the catalog suits it as it is: `deploy show PROFILE --set engine={found.file.name}`")
    else:
        say(f"would write {found.file.path}")
