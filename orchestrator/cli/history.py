"""`deploy history`, `deploy diff`, `deploy prune`: what was started, what differs, how much of it is kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import HostOption, Json, server_names, sides_to_compare
from orchestrator.cli.typer_app import SERVE, add
from orchestrator.core.console import print_data, print_json, say, terminal_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.bench.result import BenchResult

_SIDE: Final = "a profile, a lock, a result, a run directory, NAME/RUN, or a server: its last run"
ResultsOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="where results of `deploy bench` lie; default: ./results")
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    add(app, history, diff, prune, section=SERVE)


def history(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="one server; default: all", autocompletion=server_names)
    ] = None,
    *,
    results: ResultsOption = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Show every start: its plan, how it was proven, its best figures, how it ended."""
    from orchestrator.core.paths import Home
    from orchestrator.report.history import history, history_table
    from orchestrator.servers.servers import open_servers

    measured = tuple(_measured(results))
    with open_servers(Home.from_environment(), host) as servers:
        starts = history(servers, name, measured)
    if json:
        print_json([start.to_dict() for start in starts])
    elif starts:
        print_data(history_table(starts, width=terminal_width()))
    else:
        say("nothing was started from here yet; `deploy profiles` lists what `deploy up PROFILE` can start")


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE, autocompletion=sides_to_compare)],
    b: Annotated[str, typer.Argument(metavar="B", help="another", autocompletion=sides_to_compare)],
    *,
    results: ResultsOption = None,
    json: Json = False,
) -> None:
    """Set two profiles, locks, runs or results side by side: configuration, image, weights, host, figures."""
    from orchestrator.core.paths import Home
    from orchestrator.report.diff import diff, diff_text, resolve_side

    home, measured = Home.from_environment(), tuple(_measured(results))
    found = diff(resolve_side(a, home, measured), resolve_side(b, home, measured))
    if json:
        print_json(found.to_dict())
    else:
        print_data(diff_text(found, width=terminal_width()))


def _measured(results: Path | None) -> "Iterator[BenchResult]":
    """The results below a directory. Raises UsageError for one that is not there, but for the default."""
    from orchestrator.bench.result_files import results_under
    from orchestrator.core.errors import UsageError

    if results is not None and not results.is_dir():
        raise UsageError(f"there is no directory `{results}`", hint="`deploy bench` with `--output` names one")
    below = results or Path("results")
    return results_under(below) if below.is_dir() else iter(())


def prune(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="one server; default: all", autocompletion=server_names)
    ] = None,
    *,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="runs of each name that stay, the newest")] = 10,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="what is younger stays: 30d, 12h, 2026-11-22")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and remove nothing")] = False,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Remove old run directories. What runs, or may have to be brought back, stays."""
    from datetime import datetime

    from orchestrator.core.paths import Home
    from orchestrator.servers.logs import parse_since
    from orchestrator.servers.prune import PruneRequest, prune, prune_text
    from orchestrator.servers.servers import open_servers

    since = parse_since(older_than, datetime.now().astimezone(), option="--older-than")
    request = PruneRequest(keep=keep, since=since, dry_run=dry_run)
    with open_servers(Home.from_environment(), host) as servers:
        found = prune(servers, name, request)
    if json:
        print_json({"dry_run": dry_run, "runs": [old.to_dict() for old in found]})
    else:
        say(prune_text(found, dry_run=dry_run))
