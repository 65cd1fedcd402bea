"""The command `deploy ask`."""

from typing import Annotated

import typer

from orchestrator.cli.options import HostOption, NameArgument
from orchestrator.core.console import print_data
from orchestrator.core.paths import Home
from orchestrator.core.secrets import StreamRedactor
from orchestrator.servers.ask import ask
from orchestrator.servers.servers import open_servers


def command(
    name: NameArgument,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="text to complete")],
    *,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="maximum number of tokens to generate")] = 64,
    host: HostOption = None,
) -> None:
    """Send one prompt and stream the completion. Sampling is greedy."""
    with open_servers(Home.from_environment(), host, name=name) as servers:
        server, answer = servers.open(name), StreamRedactor()
        server.require_running()
        try:
            for piece in ask(server.url, prompt, tokens=tokens, key=server.key, model=server.model):
                print_data(answer.feed(piece), end="")
        finally:
            print_data(answer.close(), end="")
    print_data("")
