"""The command `deploy diff`."""

from typing import Annotated, Final

import typer

from orchestrator.cli.options import Json, sides_to_compare
from orchestrator.core.console import terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.report.diff import DiffOutput, diff, diff_text, resolve_side

_SIDE: Final = "profile, lock, result, run directory, NAME/RUN or server"

OUTPUT: Final = JsonOutput(DiffOutput)


def command(
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE, autocompletion=sides_to_compare)],
    b: Annotated[str, typer.Argument(metavar="B", help="the same, to compare with A", autocompletion=sides_to_compare)],
    *,
    json: Json = False,
) -> None:
    """Compare two profiles, locks, runs or results."""
    home = Home.from_environment()
    difference = diff(resolve_side(a, home), resolve_side(b, home))
    OUTPUT.show_or_print(difference, lambda: diff_text(difference, width=terminal_width()), json=json)
