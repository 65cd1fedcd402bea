"""The command `deploy restart`."""

from typing import Final

from orchestrator.cli.options import DrainOption, Json, NameArgument
from orchestrator.cli.up_result import UP, show_up
from orchestrator.core.paths import Home
from orchestrator.servers.rollback import restart

OUTPUT: Final = UP


def command(name: NameArgument, *, drain: DrainOption = None, json: Json = False) -> None:
    """Restart a server with its last plan. A running server is stopped first."""
    show_up(restart(name, Home.from_environment(), drain=drain), json=json)
