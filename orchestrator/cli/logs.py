"""The command `deploy logs`."""

from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, NameArgument
from orchestrator.core.console import print_data
from orchestrator.core.paths import Home
from orchestrator.servers.logs import log_lines
from orchestrator.servers.servers import open_servers


def command(
    name: NameArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="follow the log until the server exits")] = False,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=1, metavar="N", help="show only the last N lines")
    ] = None,
    host: HostOption = None,
) -> None:
    """Show or follow the log of a server. Secrets are removed; a stopped server's last log is shown."""
    with open_servers(Home.from_environment(), host, name=name) as servers:
        for line in log_lines(servers, name, follow=follow, last=lines):
            print_data(line, colors=True)
