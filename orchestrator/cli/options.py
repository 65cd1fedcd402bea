"""Options that more than one command takes, each described once."""

from typing import Annotated, TypeAlias

import typer

ProfileOption: TypeAlias = Annotated[str, typer.Option("--profile", "-p", help="a profile's name, or a profile file")]
SetOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override one value, such as layout.tp=4")
]
NameArgument: TypeAlias = Annotated[str, typer.Argument(help="the server's name, by default its profile's")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="print JSON for programs")]
HostOption: TypeAlias = Annotated[
    str | None, typer.Option("--host", metavar="URL", help="Docker host, such as ssh://user@node; default: DOCKER_HOST")
]
