"""`deploy onboard`: a checkpoint becomes a model, an image an engine, and a model on a machine a profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.options import HostOption, Json, RevisionOption, complete_names
from orchestrator.cli.typer_app import PREPARE, add, below
from orchestrator.core.console import note, print_data, print_json, say, table, terminal_width

if TYPE_CHECKING:
    from orchestrator.planner.add.engine import OnboardedEngine
    from orchestrator.planner.add.file import CatalogFile

NameOption: TypeAlias = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="what it is to be called; default: as what it is read from")
]
FactOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a fact, such as layers=61 or platform=rocm; may be repeated"),
]
ReplaceOption: TypeAlias = Annotated[bool, typer.Option("--replace", help="write over the file of that name")]

ModelOption: TypeAlias = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="a model's name", autocompletion=complete_names("MODEL"))
]
HardwareOption: TypeAlias = Annotated[
    str, typer.Option("--hardware", metavar="HARDWARE", help="a node's name", autocompletion=complete_names("HARDWARE"))
]
LikeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="PROFILE",
        help="another profile, whose options are taken over as far as they suit",
        autocompletion=complete_names("PROFILE"),
    ),
]
EngineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="default: that of `--like`, or the newest",
        autocompletion=complete_names("ENGINE"),
    ),
]
LoadOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="WORKLOAD",
        help="the load it is meant for, by name; default: that of `--like`",
        autocompletion=complete_names("WORKLOAD"),
    ),
]
ContextOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--context", metavar="TOKENS", min=1, help="the longest request; default: the model's context"),
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = below(
        app,
        "onboard",
        section=PREPARE,
        text="Add a model from its checkpoint, an engine from its image, and a profile that fits.",
    )
    add(group, model, engine, profile)


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
    from orchestrator.core.paths import Home
    from orchestrator.planner.add.model import onboard_model
    from orchestrator.planner.add.profile import next_command

    home = Home.from_environment()
    found = onboard_model(where, home, name=name, revision=revision, overrides=set_ or (), replace=replace)
    following = next_command(found.name, home)
    if json:
        print_json({**found.to_dict(), "next": following})
    else:
        _show_model(found, following)


def _show_model(found: "CatalogFile", following: str) -> None:
    print_data(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.notes:
        note(text)
    say(f"wrote {found.path}")
    if following:
        say(f"next: `{following}`")
    else:
        note("no node of the catalogue holds it: `deploy onboard profile` says why, with figures")


def engine(
    what: Annotated[
        str,
        typer.Argument(metavar="VERSION|IMAGE", help="a version of sglang, such as 0.5.20, or an image that is here"),
    ],
    *,
    name: NameOption = None,
    set_: FactOption = None,
    wheel: Annotated[Path | None, typer.Option(metavar="FILE", help="that version's; default: downloaded")] = None,
    python: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an interpreter with sglang's dependencies; default: our own")
    ] = None,
    host: HostOption = None,
    replace: ReplaceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show it, and write nothing")] = False,
    json: Json = False,
) -> None:
    """Write an engine's file, and the table of its options. They go into `$DEPLOY_HOME/profiles/engines`.

    Patches are told from its sources; of an image its platform, its aiter and the tables of tuned kernels are read.
    What it does not say is asked for by key.
    """
    from orchestrator.core.paths import Home
    from orchestrator.planner.add.engine import next_command, onboard_engine
    from orchestrator.planner.add.engine_sources import EngineRequest

    home = Home.from_environment()
    request = EngineRequest(
        what=what,
        name=name,
        overrides=set_ or (),
        wheel=wheel,
        python=python,
        host=host,
        replace=replace,
        dry_run=dry_run,
    )
    found = onboard_engine(request, home)
    following = "" if dry_run else next_command(found, home)
    if json:
        print_json({**found.to_dict(), "written": not dry_run, "next": following})
    else:
        _show_engine(found, following, written=not dry_run)


def _show_engine(found: "OnboardedEngine", following: str, *, written: bool) -> None:
    print_data(table(["key", "value", "from"], found.rows(), width=terminal_width()))
    for text in found.file.notes:
        note(text)
    if written:
        say(f"wrote {found.file.path}")
        if following:
            say(f"next: `{following}`")
        else:
            note(f"no profile of the catalogue suits it as it is: `deploy show PROFILE --set engine={found.file.name}`")
    else:
        say(f"would write {found.file.path}")


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
    from orchestrator.core.paths import Home
    from orchestrator.planner.add.profile import ProfileRequest, propose_profile, write_proposal

    home = Home.from_environment()
    request = ProfileRequest(
        model=model, hardware=hardware, like=like, engine=engine, workload=workload, context=context
    )
    proposal = propose_profile(request, home, name=name, replace_it=replace)
    path = write_proposal(proposal, home)
    if json:
        print_json({**proposal.to_dict(), "path": str(path)})
    else:
        print_data(table(["key", "value", "why"], proposal.rows(), width=terminal_width()))
        say(f"wrote {path}")
        say(f"next: `deploy up {proposal.name} --dry-run`")
