"""Options shared by commands of `deploy add`."""

from typing import Annotated, TypeAlias

import typer

NameOption: TypeAlias = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="name of the entry; default: from its source")
]
FactOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="value, such as layers=61 or platform=rocm (may be repeated)"),
]
ReplaceOption: TypeAlias = Annotated[bool, typer.Option("--replace", help="overwrite the file of that name")]
