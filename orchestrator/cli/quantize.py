"""The command `deploy quantize`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import Json, entry_option
from orchestrator.core.console import info
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.planner.add.file import EntryOutput
from orchestrator.planner.planning import load
from orchestrator.planner.quantize import QuantizationRequest
from orchestrator.planner.quantize import quantize as run_quantization

RecipeOption: TypeAlias = Annotated[str, entry_option("RECIPE", "--recipe", help="recipe name or file")]
ProfileOption: TypeAlias = Annotated[
    str | None, entry_option("PROFILE", "--profile", "-p", help="use this profile's image and GPUs; default: local CPU")
]


@dataclass(frozen=True, kw_only=True)
class QuantizeOutput:
    """The new checkpoint; `model` is null if no catalog entry was written."""

    target: Path
    shards: int
    bytes: int
    model: EntryOutput | None


OUTPUT: Final = JsonOutput(QuantizeOutput)


def command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="directory of a BF16 checkpoint")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="directory to create")],
    *,
    recipe: RecipeOption,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="name of the model's catalog entry; default: TARGET's")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="parallel shards; default: one per core or GPU")
    ] = None,
    profile_: ProfileOption = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="image to use, instead of the one of `--profile`")
    ] = None,
    json: Json = False,
) -> None:
    """Quantize a checkpoint with AMD Quark. It works shard by shard; the same command resumes.

    The new checkpoint is verified as by `stage`; its catalog entry goes into `$DEPLOY_HOME/profiles/models`. Without
    `--profile` Quark runs in its own virtual environment (1.5 GB, once).
    """
    home = Home.from_environment()
    if image is not None and profile_ is None:
        raise UsageError(
            "`--image` needs `--profile`", hint="add `--profile PROFILE`; it selects the GPUs of the container"
        )
    request = QuantizationRequest(
        source=source.absolute(),
        target=target.absolute(),
        recipe=recipe,
        name=name,
        workers=workers,
        plan=load(profile_).plan if profile_ else None,
        image=image,
    )
    result = run_quantization(request, home)
    if json:
        OUTPUT.show(QuantizeOutput(target=result.target, shards=result.shards, bytes=result.size, model=result.model))
        return
    info(f"`{result.target}` is complete: {result.shards} shards, {result.size:,} bytes from {result.source_size:,}")
    if result.model is not None:
        info(f"wrote {result.model.path}")
        info(f"next: `deploy add profile --model {result.model.name} --hardware HARDWARE`")
