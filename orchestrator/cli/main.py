"""The console script: parse, call, print. The only place that turns errors into exit codes."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli import bench, cache, diagnose, evals, host, images, kernels, profiles, report, reproduce, serve
from orchestrator.core.console import out, show_error
from orchestrator.core.errors import DeployError, HostError

app = typer.Typer(
    name="deploy", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
profiles.register(app)
host.register(app)
images.register(app)
cache.register(app)
kernels.register(app)
serve.register(app)
diagnose.register(app)
bench.register(app)
evals.register(app)
report.register(app)
reproduce.register(app)


def _version(asked: bool) -> None:
    if asked:
        out(__version__)
        raise typer.Exit


@app.callback()
def root(
    *, version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False
) -> None:
    """Deploy and prove sglang servers on ROCm."""


def main() -> None:
    """Run the command line and exit with the error's own code; a terminal that goes away counts as Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        app(prog_name="deploy")
    except DeployError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except OSError as error:  # what no command has made a sentence of: a full disk, a home that is not ours
        hint = "free disk space, or set DEPLOY_HOME to where you may write" if error.filename else ""
        fault = HostError(error.strerror or str(error), where=str(error.filename or ""), hint=hint)
        show_error(fault)
        sys.exit(fault.exit_code)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
