"""`deploy onboard`: a checkpoint becomes a model, and a model on a machine a profile."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.grammar import PREPARE, add, below
from orchestrator.cli.options import Json, RevisionOption, names_of
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

ModelOption: TypeAlias = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="a model's name", autocompletion=names_of("MODEL"))
]
HardwareOption: TypeAlias = Annotated[
    str, typer.Option("--hardware", metavar="HARDWARE", help="a node's name", autocompletion=names_of("HARDWARE"))
]
LikeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="PROFILE",
        help="another profile, whose options are taken over as far as they suit",
        autocompletion=names_of("PROFILE"),
    ),
]
EngineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="default: that of `--like`, or the newest",
        autocompletion=names_of("ENGINE"),
    ),
]
LoadOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="WORKLOAD",
        help="the load it is meant for, by name; default: that of `--like`",
        autocompletion=names_of("WORKLOAD"),
    ),
]
ContextOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--context", metavar="TOKENS", min=1, help="the longest request; default: the model's context"),
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = below(app, "onboard", section=PREPARE, text="Add a model from its checkpoint, and a profile that fits.")
    add(group, model, profile)


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
    from orchestrator.commands.onboard_profile import next_command
    from orchestrator.core.paths import Home

    home = Home.from_environment()
    found = onboard_model(where, home, name=name, revision=revision, overrides=set_ or (), replace=replace)
    following = next_command(found.name, home)
    if json:
        out_json({**found.to_dict(), "next": following})
    else:
        _show_model(found, following)


def _show_model(found: "OnboardedModel", following: str) -> None:
    out(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.notes:
        note(text)
    say(f"wrote {found.path}")
    if following:
        say(f"next: `{following}`")
    else:
        note("no node of the catalogue holds it: `deploy onboard profile` says why, with figures")


def profile(
    *,
    model: ModelOption,
    hardware: HardwareOption,
    like: LikeOption = None,
    engine: EngineOption = None,
    workload: LoadOption = None,
    context: ContextOption = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="default: the hardware and the model")
    ] = None,
    replace: ReplaceOption = False,
    json: Json = False,
) -> None:
    """Propose a profile for a model on a node. Written if it fits; each setting has its reason.

    The layout is the smallest that holds the longest request, by the computation of `deploy show --capacity`.
    """
    from orchestrator.commands.onboard_profile import ProfileRequest, propose_profile, write_proposal
    from orchestrator.core.paths import Home

    home = Home.from_environment()
    request = ProfileRequest(
        model=model, hardware=hardware, like=like, engine=engine, workload=workload, context=context
    )
    proposal = propose_profile(request, home, name=name, replace_it=replace)
    path = write_proposal(proposal, home)
    if json:
        out_json({**proposal.to_dict(), "path": str(path)})
    else:
        out(table(["key", "value", "why"], proposal.rows(), width=terminal_width()))
        say(f"wrote {path}")
        say(f"next: `deploy up {proposal.name} --dry-run`")
