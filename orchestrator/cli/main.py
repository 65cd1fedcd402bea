"""The entry point of the console script."""

from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli.commands import PROGRAM
from orchestrator.cli.exit_codes import run_and_exit
from orchestrator.cli.typer_app import Group
from orchestrator.core.console import print_data

app = typer.Typer(
    name=PROGRAM,
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        print_data(__version__)
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Deploy sglang servers and verify what was deployed."""


def main() -> None:
    """Run the command line."""
    run_and_exit(lambda: app(prog_name=PROGRAM))
