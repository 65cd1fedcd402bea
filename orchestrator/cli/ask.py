"""The command `deploy ask`."""

from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, NameArgument
from orchestrator.core.console import print_data
from orchestrator.core.paths import Home
from orchestrator.core.secrets import StreamRedactor
from orchestrator.servers.ask import ask
from orchestrator.servers.servers import open_servers
from orchestrator.servers.start.verify import api_key_for, require_running, served_model


def command(
    name: NameArgument,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="what to complete")],
    *,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="at most this many tokens")] = 64,
    host: HostOption = None,
) -> None:
    """Stream one greedy completion of a running server."""
    with open_servers(Home.from_environment(), host) as servers:
        handle = servers.one(name)
        require_running(servers.runtime(handle), handle)
        answer = StreamRedactor()
        try:
            model = served_model(handle)
            for piece in ask(handle.url, prompt, tokens=tokens, key=api_key_for(handle), model=model):
                print_data(answer.feed(piece), end="")
        finally:
            print_data(answer.close(), end="")
    print_data("")
