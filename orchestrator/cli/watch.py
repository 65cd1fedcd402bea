"""The command `deploy watch`."""

from collections.abc import Sequence
from json import dumps
from os import environ
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import Json, server_names
from orchestrator.core.console import info, note, print_data
from orchestrator.core.errors import UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.core.streams import drop_when_stalled
from orchestrator.core.subprocesses import exec_program, python_module_argv
from orchestrator.servers.watch.alerts import Receiver
from orchestrator.servers.watch.events import WatchEvent
from orchestrator.servers.watch.recovery import require_watchable
from orchestrator.servers.watch.systemd import WEBHOOK, secret_variables, secrets_file, unit_text

OUTPUT: Final = JsonOutput(WatchEvent, lines=True, omits_null=True)  # printed by `watch_main`


def command(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="server names", autocompletion=server_names)],
    *,
    exec_: Annotated[
        str | None, typer.Option("--exec", metavar="COMMAND", help="command to run on each event (JSON on stdin)")
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL", envvar="DEPLOY_WEBHOOK", show_envvar=True, help="URL that receives each event (JSON)"
        ),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="print a systemd unit and stop")] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="file for the unit of `--install`")] = None,
    json: Json = False,
) -> None:
    """Restart servers that die or hang. Ctrl-C stops watching; the servers keep running."""
    home = Home.from_environment()
    if output is not None and not install:
        raise UsageError("`--output` needs `--install`", hint="add `--install`, or omit `--output`")
    if exec_ is not None:
        Receiver.command(exec_)
    if webhook is not None:
        Receiver.webhook(webhook)
    if install:
        _hand_over_unit(names, home, command=exec_, webhook=webhook, output=output)
        return
    drop_when_stalled()
    require_watchable(home, names)
    request = dumps({"names": names, "exec": exec_, "json": json})
    exec_program(python_module_argv("orchestrator.cli.watch_main", request), env={"DEPLOY_WEBHOOK": webhook})


def _hand_over_unit(
    names: Sequence[str], home: Home, *, command: str | None, webhook: str | None, output: Path | None
) -> None:
    """Print or write the unit, and name the variables that it reads."""
    secrets = secrets_file(names, home)
    if webhook != (environ.get(WEBHOOK) or None):
        hint = f"omit `--webhook`, and write a line `{WEBHOOK}=…` into `{secrets}`, which the unit reads"
        raise UsageError("the URL of a webhook must not appear in a systemd unit", hint=hint)
    unit = unit_text(names, home, command=command)
    if output is None:
        print_data(unit, end="")
    else:
        atomic_write(output, unit, mode=0o644)
        info(f"wrote {output}")
    if variables := secret_variables(names, home):
        note(f"the unit reads {', '.join(variables)} from `{secrets}`: write one line `NAME=VALUE` for each, mode 0600")
