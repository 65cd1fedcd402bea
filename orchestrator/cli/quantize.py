"""The command `deploy quantize`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.checkpoints.quantize.source import read_source
from orchestrator.cli.options import Json, complete_names
from orchestrator.core.console import note, print_data, print_json, say, table, terminal_width
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.planner.add.profile import next_command
from orchestrator.planner.planning import load
from orchestrator.planner.quantize import QuantizationRequest, cost, recipe_rows
from orchestrator.planner.quantize import quantize as carry_out

RecipeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="RECIPE", help="a recipe's name, or a file", autocompletion=complete_names("RECIPE")
    ),
]
InOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--in",
        metavar="PROFILE",
        help="run in this profile's image, on the GPUs of its hardware; default: on this machine's CPU",
        autocompletion=complete_names("PROFILE"),
    ),
]


def command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="the directory of a BF16 checkpoint")],
    target: Annotated[
        Path | None,
        typer.Argument(metavar="TARGET", help="a directory to be made; default: show what each recipe makes"),
    ] = None,
    *,
    recipe: RecipeOption = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="of the model's file; default: as the target")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="shards at once; default: one a core, as memory allows, or one a GPU"),
    ] = None,
    in_: InOption = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="with `--in`: run in this image instead")
    ] = None,
    json: Json = False,
) -> None:
    """Quantize a checkpoint with AMD Quark. It works shard by shard; the same command resumes.

    Without TARGET shows the result of each recipe. The new checkpoint is verified as by `stage`; its catalog entry goes
    into `$DEPLOY_HOME/profiles/models`. Without `--in` Quark runs in its own virtual environment (1.5 GB, once).
    """
    home = Home.from_environment()
    if target is None:
        _show(source.absolute(), home, json=json)
        return
    if recipe is None:
        raise UsageError("say how: `--recipe RECIPE`", hint=f"`deploy quantize {source}` shows what each makes of it")
    if image is not None and in_ is None:
        raise UsageError("`--image` is for `--in`", hint="a profile says which GPUs its container is given")
    request = QuantizationRequest(
        source=source.absolute(),
        target=target.absolute(),
        recipe=recipe,
        name=name,
        workers=workers,
        plan=load(in_).plan if in_ else None,
        image=image,
    )
    made = carry_out(request, home)
    if json:
        model = made.model.to_dict() if made.model else None
        print_json({"target": str(made.target), "shards": made.shards, "bytes": made.size, "model": model})
        return
    say(f"`{made.target}` is whole: {made.shards} shards, {made.size:,} bytes from {made.source_size:,}")
    if made.model is not None:
        _show_next(made.model.name, made.model.path, home)


def _show(source: Path, home: Home, *, json: bool) -> None:
    found = read_source(source)
    rows = list(recipe_rows(found, home))
    if json:
        print_json([dict(zip(("recipe", "size", "left", "what"), row, strict=True)) for row in rows])
        return
    print_data(table(["recipe", "size", "left as they are", "what it does"], rows, width=terminal_width()))
    note(cost(found))


def _show_next(name: str, path: Path, home: Home) -> None:
    say(f"wrote {path}")
    if following := next_command(name, home):
        say(f"next: `{following}`")
