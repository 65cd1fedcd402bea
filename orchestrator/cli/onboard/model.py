"""The command `deploy onboard model`."""

from typing import Annotated

import typer

from orchestrator.cli.onboard.options import FactOption, NameOption, ReplaceOption
from orchestrator.cli.options import Json, RevisionOption
from orchestrator.core.console import note, print_data, print_json, say, table, terminal_width
from orchestrator.core.paths import Home
from orchestrator.planner.add.file import CatalogFile
from orchestrator.planner.add.model import onboard_model
from orchestrator.planner.add.profile import next_command


def command(
    where: Annotated[
        str, typer.Argument(metavar="DIR|HUB_ID", help="a checkpoint's directory, or a repository of the hub")
    ],
    *,
    name: NameOption = None,
    revision: RevisionOption = None,
    set_: FactOption = None,
    replace: ReplaceOption = False,
    json: Json = False,
) -> None:
    """Write a model's file from its checkpoint. It goes into `$DEPLOY_HOME/profiles/models`.

    Read are config.json, the index and the headers of the safetensors files, never a tensor. What they do not say is
    asked for by key.
    """
    home = Home.from_environment()
    found = onboard_model(where, home, name=name, revision=revision, overrides=set_ or (), replace=replace)
    following = next_command(found.name, home)
    if json:
        print_json({**found.to_dict(), "next": following})
    else:
        _show_model(found, following)


def _show_model(found: CatalogFile, following: str) -> None:
    print_data(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.notes:
        note(text)
    say(f"wrote {found.path}")
    if following:
        say(f"next: `{following}`")
    else:
        note("no node of the catalog holds it: `deploy onboard profile` says why, with figures")
