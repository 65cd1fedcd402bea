"""The command `deploy add profile`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.add.options import ReplaceOption
from orchestrator.cli.options import GpusOption, Json, entry_option
from orchestrator.core.console import info, print_data, table, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.plan.capacity import Capacity
from orchestrator.planner.add.profile import Choice, ProfileRequest, propose_profile, write_proposal

ModelOption: TypeAlias = Annotated[str, entry_option("MODEL", "--model", help="model name")]
HardwareOption: TypeAlias = Annotated[str, entry_option("HARDWARE", "--hardware", help="hardware name")]
BaseOption: TypeAlias = Annotated[
    str | None, entry_option("PROFILE", "--base", help="profile whose flags are adopted where they fit")
]
EngineOption: TypeAlias = Annotated[
    str | None, entry_option("ENGINE", "--engine", help="engine name; default: that of `--base`, or the newest")
]
LoadOption: TypeAlias = Annotated[
    str | None, entry_option("WORKLOAD", "--workload", "-w", help="workload name; default: that of `--base`")
]
MaxContextOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-context", metavar="TOKENS", min=1, help="longest request (tokens); default: the model's context length"
    ),
]


@dataclass(frozen=True, kw_only=True)
class ProfileOutput:
    """A new profile and its file, the reason for each setting, and what fits."""

    profile: str
    choices: tuple[Choice, ...]
    capacity: Capacity
    path: Path


OUTPUT: Final = JsonOutput(ProfileOutput)


def command(
    *,
    model: ModelOption,
    hardware: HardwareOption,
    gpus: GpusOption = None,
    base: BaseOption = None,
    engine: EngineOption = None,
    workload: LoadOption = None,
    max_context: MaxContextOption = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="profile name; default: the hardware and the model")
    ] = None,
    replace: ReplaceOption = False,
    json: Json = False,
) -> None:
    """Propose a profile for a model on a node. It is written if the model fits; each setting has its reason.

    The layout is the smallest that holds the longest request, as `deploy show --capacity` computes it.
    """
    home = Home.from_environment()
    request = ProfileRequest(
        model=model, hardware=hardware, gpus=gpus, base=base, engine=engine, workload=workload, max_context=max_context
    )
    proposal = propose_profile(request, home, name=name, replace_it=replace)
    path = write_proposal(proposal, home)
    if json:
        capacity = proposal.valid.capacity_for(proposal.valid.displayed_load)
        OUTPUT.show(ProfileOutput(profile=proposal.name, choices=proposal.choices, capacity=capacity, path=path))
    else:
        print_data(table(["key", "value", "reason"], proposal.rows(), width=terminal_width()))
        info(f"wrote {path}")
        info(f"next: `deploy up {proposal.name} --dry-run`")
