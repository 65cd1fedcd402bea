"""Options shared by commands of `deploy kernels`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.cli.options import image_name

TableOption: TypeAlias = Annotated[
    list[Path] | None, typer.Option("--table", metavar="FILE", help="tuned table, CSV (may be repeated, in this order)")
]
ImageOption: TypeAlias = Annotated[
    str | None, typer.Option("--image", metavar="IMAGE", callback=image_name, help="image to read tables from")
]
ModelOption: TypeAlias = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="checkpoint directory; its config selects the kernel keys")
]
