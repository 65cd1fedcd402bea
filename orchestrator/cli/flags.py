"""The command `deploy flags`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.core.console import print_data
from orchestrator.core.paths import Home
from orchestrator.planner.flag_tables import write_flag_table


def command(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="a version of sglang, such as 0.5.17")],
    *,
    wheel: Annotated[Path | None, typer.Option(metavar="FILE", help="that version's; default: downloaded")] = None,
    python: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an interpreter with sglang's dependencies; default: our own")
    ] = None,
) -> None:
    """Make the table of options that a version of sglang knows. Profiles on that version are checked against it."""
    print_data(str(write_flag_table(version, Home.from_environment(), wheel=wheel, python=python)))
