"""The command `deploy top`."""

from contextlib import closing, nullcontext
from time import sleep
from typing import Annotated, Final

import typer

from orchestrator.cli.options import HostOption, Json, NameArgument
from orchestrator.core.console import live_screen, print_data, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.servers.servers import open_servers
from orchestrator.servers.top import Frame, TopView

OUTPUT: Final = JsonOutput(Frame, lines=True)


def command(
    name: NameArgument,
    *,
    once: Annotated[bool, typer.Option("--once", help="print one frame and stop")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=60, metavar="SECONDS", help="refresh interval (seconds)")
    ] = 2.0,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Show load, latency, cache and GPU use live. Ctrl-C ends it."""

    def show(frame: Frame) -> None:
        if json:
            OUTPUT.show(frame)
        else:
            draw(frame.to_text(width=terminal_width()))

    with (
        open_servers(Home.from_environment(), host, name=name) as servers,
        closing(TopView(servers, name, host=servers.host)) as view,
        nullcontext(print_data) if once or json else live_screen() as draw,
    ):
        frame = view.sample()
        while not once:
            show(frame)
            sleep(interval)
            frame = view.sample()
        sleep(interval)  # a rate needs two samples
        show(view.sample())
