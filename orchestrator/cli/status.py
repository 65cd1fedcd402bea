"""The command `deploy status`."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import typer

from orchestrator.cli.options import HostOption, Json, NameOrAllArgument
from orchestrator.core.console import info, note, print_data, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Status
from orchestrator.servers.servers import open_servers
from orchestrator.servers.status import ServerStatus, require_healthy, startup_text, status_table, statuses

OUTPUT: Final = JsonOutput(tuple[ServerStatus, ...])


def command(
    name: NameOrAllArgument = None,
    *,
    health: Annotated[bool, typer.Option("--health", help="ask every server for a token")] = False,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """List servers and their health (alias: ps). With a name or `--health`, asks each for a token."""
    with open_servers(Home.from_environment(), host, name=name) as servers:
        listed = statuses(servers, name, check_health=health or name is not None)
        if name is not None and not listed:
            servers.open(name)  # raises the error
        if json:
            OUTPUT.show(listed)
        elif listed:
            print_data(status_table(listed, width=terminal_width()))
        elif not servers.unreachable:
            info("no servers; `deploy up PROFILE` starts one, `deploy profiles` lists profiles")
        for text in (_startup_notes if name is not None else _notes)(listed):
            note(text)
        require_healthy(servers, listed, explicit=name is not None)


def _startup_notes(servers: Iterable[ServerStatus]) -> Iterator[str]:
    for server in servers:
        yield from filter(None, map(startup_text, (server, *server.replicas)))
        if server.restarts and server.health == "healthy" and server.detail:
            yield f"`{server.name}`: {server.detail}"


def _notes(servers: Iterable[ServerStatus]) -> Iterator[str]:
    for server in servers:
        if server.status in {Status.PENDING, Status.UNKNOWN} or (server.health == "unhealthy" and server.detail):
            yield f"`{server.name}`: {server.detail}"
        elif server.status == Status.EXITED:
            yield f"`{server.name}`: {server.detail}; `deploy restart {server.name}` restarts it"
