"""The command `deploy watch`."""

from json import dumps
from os import environ
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, server_names
from orchestrator.core.console import say
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import exec_program, python_module_argv
from orchestrator.servers.watch.alerts import Receiver
from orchestrator.servers.watch.recovery import require_watchable
from orchestrator.servers.watch.systemd import WEBHOOK, install_unit


def command(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="servers", autocompletion=server_names)],
    *,
    exec_: Annotated[
        str | None, typer.Option("--exec", metavar="COMMAND", help="run at each event, which it reads as JSON")
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="DEPLOY_WEBHOOK", show_envvar=True, help="post each event to it as JSON"),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="write a systemd unit that watches, and stop")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="of the unit; default: in /etc/systemd/system")
    ] = None,
    json: Json = False,
) -> None:
    """Look after servers: start again what has died or hangs, as its profile says. Ctrl-C ends it, and nothing else."""
    home = Home.from_environment()
    if output is not None and not install:
        raise UsageError("`--output` is where `--install` writes its unit")
    if exec_ is not None:
        Receiver.command(exec_)
    if webhook is not None:
        Receiver.webhook(webhook)
    if install:
        if webhook != (environ.get(WEBHOOK) or None):
            hint = f"export {WEBHOOK}=…, without `--webhook`: what comes next then puts it where the unit reads it"
            raise UsageError("a unit's words are no place for the URL of a webhook", hint=hint)
        say(install_unit(names, home, command=exec_, output=output))
        return
    require_watchable(home, names)
    request = dumps({"names": names, "exec": exec_, "json": json})
    exec_program(python_module_argv("orchestrator.cli.watch_main", request), env={"DEPLOY_WEBHOOK": webhook})
