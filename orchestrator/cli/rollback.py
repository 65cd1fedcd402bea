"""The command `deploy rollback`."""

from typing import Final

from orchestrator.cli.options import DrainOption, Json, NameArgument
from orchestrator.cli.up_result import UP, show_up
from orchestrator.core.paths import Home
from orchestrator.servers.rollback import rollback

OUTPUT: Final = UP


def command(name: NameArgument, *, drain: DrainOption = None, json: Json = False) -> None:
    """Return a server to its last known good run. If that is the newest, use the last one with another plan."""
    show_up(rollback(name, Home.from_environment(), drain=drain), json=json)
