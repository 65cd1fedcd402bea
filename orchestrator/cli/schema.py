"""The command `deploy schema`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.schemas import SCHEMAS, json_outputs, output_schema, write_schemas
from orchestrator.core.console import print_data
from orchestrator.core.errors import UsageError
from orchestrator.core.suggest import did_you_mean
from orchestrator.profiles.json_schema import json_schema


def command(
    kind: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND|COMMAND",
            help="profile, hardware, model, engine, workload, space, recipe or a command",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="directory for the schemas of all kinds of files")
    ] = None,
) -> None:
    """Print a JSON Schema. It describes a file, for editors, or the output of a command with `--json`.

    With several `--host`, a command prints such a document for each, by host; null where there is none.
    """
    name = " ".join(kind or ["profile"])
    if output:
        print_data("\n".join(str(path) for path in write_schemas(output)))
    elif name in SCHEMAS:
        print_data(json_schema(name, SCHEMAS[name]))
    elif found := json_outputs().get(name):
        print_data(output_schema(name, found))
    else:
        raise UsageError(f"no schema `{name}` found", hint=did_you_mean(name, [*SCHEMAS, *json_outputs()]))
