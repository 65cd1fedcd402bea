"""The command `deploy prune`."""

from datetime import datetime
from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, Json, server_names
from orchestrator.core.console import print_json, say
from orchestrator.core.paths import Home
from orchestrator.servers.logs import parse_since
from orchestrator.servers.prune import PruneRequest, prune, prune_text
from orchestrator.servers.servers import open_servers


def command(
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
    since = parse_since(older_than, datetime.now().astimezone(), option="--older-than")
    request = PruneRequest(keep=keep, since=since, dry_run=dry_run)
    with open_servers(Home.from_environment(), host) as servers:
        found = prune(servers, name, request)
    if json:
        print_json({"dry_run": dry_run, "runs": [old.to_dict() for old in found]})
    else:
        say(prune_text(found, dry_run=dry_run))
