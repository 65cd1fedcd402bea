"""The command `deploy add model`."""

from typing import Annotated, Final

import typer

from orchestrator.cli.add.options import FactOption, NameOption, ReplaceOption
from orchestrator.cli.options import Json, RevisionOption
from orchestrator.core.console import info, note, print_data, table, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.planner.add.file import EntryOutput
from orchestrator.planner.add.model import add_model

OUTPUT: Final = JsonOutput(EntryOutput)


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
    added = add_model(checkpoint, home, name=name, revision=revision, overrides=set_ or (), replace=replace)
    if json:
        OUTPUT.show(added)
        return
    print_data(table(["key", "value", "from"], added.rows(), width=terminal_width()))
    for text in added.notes:
        note(text)
    info(f"wrote {added.path}")
    info(f"next: `deploy add profile --model {added.name} --hardware HARDWARE`")
