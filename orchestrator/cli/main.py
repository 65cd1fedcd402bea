"""The console script: parse, call, print. The only place that turns errors into exit codes."""

import sys

import typer

from orchestrator.console import show_error
from orchestrator.errors import DeployError, Interrupted

app = typer.Typer(
    name="deploy", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback()
def root() -> None:
    """Deploy and prove sglang servers on ROCm."""


def main() -> None:
    """Run the command line and exit with the error's own code."""
    try:
        app()
    except DeployError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        show_error(Interrupted("interrupted"))
        sys.exit(Interrupted.exit_code)
