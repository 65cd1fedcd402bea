"""The command `deploy schema`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.schemas import SCHEMAS, write_schemas
from orchestrator.core.console import print_data
from orchestrator.core.errors import UsageError
from orchestrator.core.suggest import did_you_mean
from orchestrator.profiles.json_schema import json_schema


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="profile, hardware, model, engine, workload, space or recipe")
    ] = "profile",
    *,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="directory for the schemas of all kinds")
    ] = None,
) -> None:
    """Print the JSON Schema of a file. Editors use it for profiles and catalog entries."""
    if kind not in SCHEMAS:
        raise UsageError(f"no schema `{kind}` found", hint=did_you_mean(kind, SCHEMAS))
    if output:
        print_data("\n".join(str(path) for path in write_schemas(output)))
    else:
        print_data(json_schema(kind, SCHEMAS[kind]))
