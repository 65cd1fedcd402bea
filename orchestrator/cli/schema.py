"""The command `deploy schema`: JSON Schemas of the files that a user writes, and of the JSON that commands print.

The schemas are generated from the pydantic models and the declared outputs.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from orchestrator.bench.workload import Workload
from orchestrator.checkpoints.quantize.recipe import Recipe
from orchestrator.cli.commands import COMMANDS, PROGRAM, group_text
from orchestrator.core.console import print_data
from orchestrator.core.errors import UsageError
from orchestrator.core.files import atomic_write_all
from orchestrator.core.json_output import DRAFT, JsonOutput
from orchestrator.core.safe_paths import FileName
from orchestrator.core.suggest import did_you_mean
from orchestrator.experiments.sweep.space import SpaceFile
from orchestrator.plan.networks import Network
from orchestrator.profiles.layers import ENTRY_KEYS, EXTENDS, USE
from orchestrator.profiles.schema import EngineFile, HardwareFile, ModelFile, Profile

SCHEMAS: Final[Mapping[str, type[BaseModel]]] = {
    "profile": Profile,
    "hardware": HardwareFile,
    "model": ModelFile,
    "engine": EngineFile,
    "network": Network,
    "workload": Workload,
    "space": SpaceFile,
    "recipe": Recipe,
}


def command(
    kind: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND|COMMAND", help="profile, hardware, model, engine, workload, space, recipe or a command"
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
        print_data(json_schema(name))
    elif form := json_outputs().get(name):
        print_data(output_schema(name, form))
    else:
        raise UsageError(f"no schema `{name}` found", hint=did_you_mean(name, [*SCHEMAS, *json_outputs()]))


def schema_file(kind: str) -> FileName:
    """Return the file name of a schema, as used in the first line of a profile."""
    return FileName(f"{kind}.schema.json")


def write_schemas(directory: Path) -> tuple[Path, ...]:
    """Write the schema of every kind of file into a directory. Raises OSError."""
    texts = {directory / schema_file(kind): json_schema(kind) for kind in SCHEMAS}
    atomic_write_all((path, text, 0o644) for path, text in texts.items())
    return tuple(texts)


def json_schema(kind: str) -> str:
    """Return the schema of a kind of file, as text with a final newline."""
    schema = SCHEMAS[kind].model_json_schema()
    if kind == "profile":  # a profile names catalog entries, or overrides their keys
        for entry_key in ENTRY_KEYS:
            schema["properties"][entry_key] = _entry_schema(entry_key, schema["$defs"])
        description = "profile to extend, by name or path; this file overrides its values"
        schema["properties"][EXTENDS] = {"type": "string", "description": description}
        schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [EXTENDS]}]
    head = {"$schema": DRAFT, "title": f"deploy: {kind}"}
    return json.dumps({**schema, **head}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _entry_schema(entry_key: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a catalog entry inside a profile: the name or path of a file, or keys.

    No key is required here: a file may provide the others.
    """
    schema = SCHEMAS[entry_key].model_json_schema()
    for name, definition in schema.pop("$defs").items():
        definitions.setdefault(name, definition)
        if name.endswith("Section"):
            definitions[name].pop("required", None)
    use = {"type": "string", "description": f"name or path of the {entry_key} whose values the other keys override"}
    keys = {
        "type": "object",
        "additionalProperties": False,
        "properties": {USE: use, **schema["properties"]},
        "description": f"a complete {entry_key}, or values that override those of the file in `{USE}`",
    }
    name_schema = {"type": "string", "description": f"the name of its file, or its path, such as ./{entry_key}.yaml"}
    return {"anyOf": [name_schema, keys], "description": f"{entry_key}: the name of its file, its path, or its keys"}


def json_outputs() -> dict[str, JsonOutput[Any]]:
    """Return the output type of each command with `--json`, by the words of the command."""
    commands = (words for section in COMMANDS.values() for words in section if group_text(words) is None)
    modules = {words: import_module(f"orchestrator.cli.{words.replace(' ', '.')}") for words in commands}
    return {words: module.OUTPUT for words, module in modules.items() if hasattr(module, "OUTPUT")}


def output_schema(words: str, output: JsonOutput[Any]) -> str:
    """Return the schema of a command's output, as text with a final newline."""
    title = {"title": f"{PROGRAM} {words} --json{', each line' if output.lines else ''}"}
    return json.dumps({**output.schema, **title}, indent=2, ensure_ascii=False) + "\n"
