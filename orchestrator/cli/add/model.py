"""The command `deploy add model`."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from orchestrator.cli.add.options import FactOption, NameOption, ReplaceOption
from orchestrator.cli.options import Json, RevisionOption
from orchestrator.core.console import info, note, print_data, table, terminal_width
from orchestrator.core.json_output import JsonOutput, fields_of
from orchestrator.core.paths import Home
from orchestrator.hosts.survey import local
from orchestrator.planner.add.file import CatalogFile, EntryOutput
from orchestrator.planner.add.host_profile import next_command
from orchestrator.planner.add.model import add_model


@dataclass(frozen=True, kw_only=True)
class ModelOutput(EntryOutput):
    """A new model; `next` is the command that proposes a profile."""

    next: str


OUTPUT: Final = JsonOutput(ModelOutput)


def command(
    checkpoint: Annotated[str, typer.Argument(metavar="DIR|HUB_ID", help="checkpoint directory or hub repository")],
    *,
    name: NameOption = None,
    revision: RevisionOption = None,
    set_: FactOption = None,
    replace: ReplaceOption = False,
    json: Json = False,
) -> None:
    """Write a model's catalog entry from its checkpoint. It goes into `$DEPLOY_HOME/profiles/models`.

    Reads `config.json`, the index and the headers of the safetensors files, never a tensor. The error for a missing
    value names its key.
    """
    home = Home.from_environment()
    found = add_model(checkpoint, home, name=name, revision=revision, overrides=set_ or (), replace=replace)
    following = next_command(found.name, home, local)
    if json:
        OUTPUT.show(ModelOutput(**fields_of(found.to_output()), next=following))
    else:
        _show_model(found, following)


def _show_model(found: CatalogFile, following: str) -> None:
    print_data(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.notes:
        note(text)
    info(f"wrote {found.path}")
    if following:
        info(f"next: `{following}`")
    else:
        note("the model fits no node of the catalog; `deploy add profile` shows the memory it needs")
