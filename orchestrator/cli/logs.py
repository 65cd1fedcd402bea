"""The command `deploy logs`."""

from datetime import datetime
from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, NameArgument
from orchestrator.core.console import note, print_data
from orchestrator.core.paths import Home
from orchestrator.servers.logs import log_lines, parse_since
from orchestrator.servers.servers import open_servers


def command(
    name: NameArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="follow the log until the server exits")] = False,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=1, metavar="N", help="show only the last N lines")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="show only lines since 5m, 14:05 or 2026-11-22T14:05")
    ] = None,
    host: HostOption = None,
) -> None:
    """Show or follow the log of a server. Secrets are removed; a stopped server's last log is shown."""
    moment = parse_since(since, datetime.now().astimezone()) if since is not None else None
    printed = False
    with open_servers(Home.from_environment(), host, name=name) as servers:
        for line in log_lines(servers, name, follow=follow, last=lines, since=moment):
            print_data(line, colors=True)
            printed = True
    if moment is not None and not printed:
        note(f"no line since {moment:%Y-%m-%d %H:%M:%S}, by the times in the log")
