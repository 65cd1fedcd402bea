"""The command `deploy rollback`."""

from orchestrator.cli.options import Json, NameArgument
from orchestrator.cli.up_result import show_up
from orchestrator.core.paths import Home
from orchestrator.servers.rollback import rollback


def command(name: NameArgument, *, json: Json = False) -> None:
    """Return a server to its last known good run. If the newest run is verified, use the last one with another plan."""
    show_up(rollback(name, Home.from_environment()), json=json)
