"""The command `deploy down`."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from orchestrator.cli.options import DrainOption, HostOption, Json, server_names
from orchestrator.core.console import info
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.servers.down import down, down_all
from orchestrator.servers.servers import open_servers


@dataclass(frozen=True, kw_only=True)
class StoppedServers:
    """The names of the servers that were stopped."""

    down: list[str]


OUTPUT: Final = JsonOutput(StoppedServers)


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="server to stop", autocompletion=server_names)
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="stop every server of this home")] = False,
    all_homes: Annotated[
        bool, typer.Option("--all-homes", help="also stop the servers of other homes on this Docker")
    ] = False,
    drain: DrainOption = None,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Stop a server and free its GPUs. Returns when its ports and GPU memory are free.

    Waits for running and queued requests, aborts the rest at the limit, and prints both counts.
    """
    if (name is None) != (all_ or all_homes):
        raise UsageError("no server name given", hint="`deploy status` lists servers; `--all` stops all")
    ended: list[str] = []
    with open_servers(Home.from_environment(), host, name=name) as servers:
        try:
            if name is None:
                down_all(servers, all_homes=all_homes, drain=drain, ended=ended.append)
            else:
                down(servers, name, drain=drain)
                info(f"`{name}` is stopped")
                ended.append(name)
        finally:
            if json and (ended or name is None):  # else only the error is printed
                OUTPUT.show(StoppedServers(down=ended))
