"""`deploy reproduce`: measure again what was published."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import names_of
from orchestrator.cli.grammar import MEASURE, add
from orchestrator.cli.options import Json
from orchestrator.cli.report import PriceOption
from orchestrator.core.console import note, out, out_json, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.commands.reproduce import ReproducePlan


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    add(app, reproduce, section=MEASURE)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=names_of("PUBLISHED"),
            help="a published measurement, such as wafer-glm52, or a file of one",
        ),
    ],
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
    """Measure again what was published.

    First preflight, stage, kernels and build, as far as each layout needs them, then for one layout after the other up,
    smoke, bench, report and down. The same command goes on where the last call ended.
    """
    import datetime as dt

    from orchestrator.commands.coverage import note_coverage
    from orchestrator.commands.planning import load
    from orchestrator.commands.report import price_book
    from orchestrator.commands.reproduce import STATE_FILE, FinishedSteps, StepRunner, may_be_there, plan_steps
    from orchestrator.commands.reproduce import reproduce as run_steps
    from orchestrator.commands.servers import fleet
    from orchestrator.core import shell
    from orchestrator.core.paths import Home
    from orchestrator.report import load_published

    def is_there(server: str) -> bool:
        with fleet(Home.from_environment()) as servers:
            return may_be_there(servers, server)

    published = load_published(name)
    directory = output or Path("results") / published.name
    planned = plan_steps(published, directory, named=name, download_mb_s=download)
    state = FinishedSteps(directory / STATE_FILE, planned.steps)
    if dry_run:
        for run in published.reproduce.runs:
            note_coverage(load(run.profile).plan, Home.from_environment())
        hourly, source = price_book(price or ()).of(published.rates_system.partition("×")[2])
        _show(planned, state.done, hourly=hourly * published.gpus if hourly else None, source=source, json=json)
        return
    for sentence in planned.left_out:
        note(sentence)
    runner = StepRunner(
        run=lambda argv: shell.attend(shell.own("orchestrator", *argv)),
        may_be_there=is_there,
        now=lambda: dt.datetime.now(dt.UTC),
    )
    run_steps(planned.steps, state, runner, keep=keep)
    note(f"done: the report is `{directory / 'report.html'}`")


def _show(
    planned: "ReproducePlan", done: "Mapping[str, str]", *, hourly: float | None, source: str, json: bool
) -> None:
    """What remains, with its sums; `hourly` is USD for the whole node."""
    from orchestrator.commands.estimates import minutes
    from orchestrator.commands.reproduce import command, still_to_do

    steps = still_to_do(planned.steps, done)
    seconds = sum(step.about for step in steps)
    cost = seconds / 3600 * hourly if hourly is not None else None
    if json:
        listed = [{"id": step.id, "argv": ["deploy", *command(step)], "about_s": round(step.about)} for step in steps]
        total = {"about_s": round(seconds), "usd_per_node_hour": hourly, "usd": cost, "price_source": source or None}
        known = {key: value for key, value in total.items() if value is not None}
        out_json({"steps": listed, "left_out": planned.left_out, "total": known})
        return
    rows = [(f"deploy {' '.join(command(step))}", minutes(step.about), _usd(step.about, hourly)) for step in steps]
    out(table(("command", "about", "about USD"), [*rows, ("total", minutes(seconds), _usd(seconds, hourly))]))
    for sentence in planned.left_out:
        note(sentence)
    if hourly is None:
        note("no price is known: give one with `--price`")
    else:
        note(f"at ${hourly:.2f} an hour for the node ({source}); times are estimates, a failure adds to them")


def _usd(seconds: float, hourly: float | None) -> str:
    return "-" if hourly is None else f"{seconds / 3600 * hourly:.2f}"
