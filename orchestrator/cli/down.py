"""The command `deploy down`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from orchestrator.cli.options import DrainOption, HostOption, Json, server_names
from orchestrator.core.console import info
from orchestrator.core.errors import Interrupted, UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Status
from orchestrator.servers.down import down, down_all
from orchestrator.servers.servers import Servers, open_servers


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

    It waits for running and queued requests, aborts those left, and prints how many ended and were aborted.
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
        except KeyboardInterrupt as error:
            raise _interrupted(servers, name, ended) from error
        finally:
            if json and (ended or name is None):  # else only the error is printed
                OUTPUT.show(StoppedServers(down=ended))


def _interrupted(servers: Servers, name: str | None, ended: Sequence[str]) -> Interrupted:
    """Return the error of an interrupted stop, which names the stopped and the running servers."""
    alive = {Status.PENDING, Status.RUNNING, Status.UNKNOWN}
    found = (item for item in servers.find(name) if servers.runtime(item).state(item).status in alive)
    left = sorted({item.name for item in found} - set(ended))
    if not left:
        return Interrupted("interrupted", hint=f"`{name}` is not running" if name else "no server is left running")
    stop = f"deploy down {left[0]}" if name is not None or len(left) == 1 else "deploy down --all"
    return Interrupted("interrupted", hint=f"`{'`, `'.join(left)}` may still be running; stop with `{stop}`")
