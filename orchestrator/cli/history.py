"""The command `deploy history`."""

from typing import Final

from orchestrator.cli.options import HostOption, Json, NameOrAllArgument
from orchestrator.core.console import info, print_data, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.report.history import RunSummary, history, history_table
from orchestrator.servers.servers import open_servers

OUTPUT: Final = JsonOutput(tuple[RunSummary, ...])


def command(name: NameOrAllArgument = None, *, host: HostOption = None, json: Json = False) -> None:
    """List past runs and their results."""
    with open_servers(Home.from_environment(), host, name=name) as servers:
        starts = history(servers, name)
    if json:
        OUTPUT.show(starts)
    elif starts:
        print_data(history_table(starts, width=terminal_width()))
    else:
        info("no run yet; `deploy profiles` lists profiles for `deploy up PROFILE`")
