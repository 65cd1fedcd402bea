"""Options that several commands of `deploy kernels` take."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.cli.options import image_name

TableOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--table", metavar="FILE", help="a tuned table in CSV; may be repeated, in this order"),
]
ImageOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", callback=image_name, help="read the tables that this image ships"),
]
ModelOption: TypeAlias = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="a checkpoint: its config decides which key is looked up")
]
