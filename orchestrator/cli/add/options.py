"""Options that several commands of `deploy add` take."""

from typing import Annotated, TypeAlias

import typer

NameOption: TypeAlias = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="what it is to be called; default: as what it is read from")
]
FactOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a fact, such as layers=61 or platform=rocm; may be repeated"),
]
ReplaceOption: TypeAlias = Annotated[bool, typer.Option("--replace", help="write over the file of that name")]
