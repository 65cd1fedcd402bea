"""`deploy onboard`: a checkpoint becomes a model, and a model on a machine a profile."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.grammar import PREPARE, add, below
from orchestrator.cli.options import Json, RevisionOption
from orchestrator.core.console import note, out, out_json, say, table, terminal_width

if TYPE_CHECKING:
    from orchestrator.commands.onboard_model import OnboardedModel

NameOption: TypeAlias = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="what it is to be called; default: as the checkpoint is")
]
FactOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a fact of the model, such as layers=61; may be repeated"),
]
ReplaceOption: TypeAlias = Annotated[bool, typer.Option("--replace", help="write over the file of that name")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = below(app, "onboard", section=PREPARE, text="Add a model of your own, from its checkpoint.")
    add(group, model)


def model(
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
    from orchestrator.commands.onboard_model import onboard_model
    from orchestrator.core.paths import Home

    home = Home.from_environment()
    found = onboard_model(where, home, name=name, revision=revision, overrides=set_ or (), replace=replace)
    if json:
        out_json(found.to_dict())
    else:
        _show_model(found)


def _show_model(found: "OnboardedModel") -> None:
    out(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.notes:
        note(text)
    say(f"wrote {found.path}")
