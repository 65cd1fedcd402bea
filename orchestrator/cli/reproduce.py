"""`deploy reproduce`: measure again what was published."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Json
from orchestrator.cli.report import PriceOption
from orchestrator.console import note, out, out_json, table

if TYPE_CHECKING:
    from orchestrator.deploy.reproduce import Step


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command()(reproduce)


def reproduce(
    name: Annotated[str, typer.Argument(help="a published measurement, such as wafer-glm52")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list what would be done, how long and for how much")
    ] = False,
    price: PriceOption = None,
    download: Annotated[float, typer.Option(metavar="MB/S", min=1, help="expected, for the estimate")] = 400.0,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="default: results/NAME")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave a server up when its measurement fails")] = False,
    json: Json = False,
) -> None:
    """Measure again what was published: preflight, stage, build, then up, smoke, bench, report, down for each layout.

    The same command goes on where the last call ended.
    """
    import datetime as dt
    import sys

    from orchestrator import shell
    from orchestrator.deploy.report import price_book
    from orchestrator.deploy.reproduce import STATE_FILE, State, plan_steps, still_to_do
    from orchestrator.deploy.reproduce import reproduce as run_steps
    from orchestrator.report.published import load_published

    published = load_published(name)
    directory = output or Path("results") / name
    steps = plan_steps(published, directory, download_mb_s=download)
    state = State(directory / STATE_FILE, steps)
    if dry_run:
        gpu = published.rates_system.partition("×")[2]
        hourly, source = price_book(price or ()).of(gpu)
        todo = still_to_do(steps, state.done)
        _show(todo, hourly=hourly * published.gpus if hourly else None, source=source, json=json)
        return
    run_steps(
        steps,
        state,
        run=lambda argv: shell.attend([sys.executable, "-m", "orchestrator", *argv]),
        now=lambda: dt.datetime.now(dt.UTC),
        keep=keep,
    )
    note(f"done: the report is `{directory / 'report.html'}`")


def _show(steps: "tuple[Step, ...]", *, hourly: float | None, source: str, json: bool) -> None:
    """The list with its sums; `hourly` is USD for the whole node."""
    from orchestrator.deploy.reproduce import command

    seconds = sum(step.about for step in steps)
    cost = seconds / 3600 * hourly if hourly is not None else None
    if json:
        listed = [{"id": step.id, "argv": ["deploy", *command(step)], "about_s": round(step.about)} for step in steps]
        total = {"about_s": round(seconds), "usd_per_node_hour": hourly, "usd": cost, "price_source": source or None}
        out_json({"steps": listed, "total": {key: value for key, value in total.items() if value is not None}})
        return
    rows = [(f"deploy {' '.join(command(step))}", _minutes(step.about), _usd(step.about, hourly)) for step in steps]
    out(table(("command", "about", "about USD"), [*rows, ("total", _minutes(seconds), _usd(seconds, hourly))]))
    if hourly is None:
        note("no price is known: give one with `--price`")
    else:
        note(f"at ${hourly:.2f} an hour for the node ({source}); times are estimates, a failure adds to them")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _usd(seconds: float, hourly: float | None) -> str:
    return "-" if hourly is None else f"{seconds / 3600 * hourly:.2f}"
