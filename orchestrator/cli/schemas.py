"""The JSON Schemas of the files that a user writes, for editors, and of what commands print with `--json`."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from orchestrator.bench.workload import Workload
from orchestrator.checkpoints.quantize.recipe import Recipe
from orchestrator.cli.commands import COMMANDS, PROGRAM, group_text
from orchestrator.core.files import atomic_write_all
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.safe_paths import FileName
from orchestrator.experiments.sweep.space import SpaceFile
from orchestrator.plan.networks import Network
from orchestrator.profiles.json_schema import KINDS, json_schema

SCHEMAS: Final[Mapping[str, type[BaseModel]]] = {
    **KINDS,
    "network": Network,
    "workload": Workload,
    "space": SpaceFile,
    "recipe": Recipe,
}


def schema_file(kind: str) -> FileName:
    """Return the file name of a schema, as used in the first line of a profile."""
    return FileName(f"{kind}.schema.json")


def write_schemas(directory: Path) -> tuple[Path, ...]:
    """Write the schema of every kind of file into a directory. Raises OSError."""
    texts = {directory / schema_file(kind): json_schema(kind, model) for kind, model in SCHEMAS.items()}
    atomic_write_all((path, text, 0o644) for path, text in texts.items())
    return tuple(texts)


def json_outputs() -> dict[str, JsonOutput[Any]]:
    """Return what each command with `--json` prints, by the words of the command."""
    commands = (words for section in COMMANDS.values() for words in section if group_text(words) is None)
    modules = {words: import_module(f"orchestrator.cli.{words.replace(' ', '.')}") for words in commands}
    return {words: module.OUTPUT for words, module in modules.items() if hasattr(module, "OUTPUT")}


def output_schema(words: str, output: JsonOutput[Any]) -> str:
    """Return the schema of what a command prints, as text with a final newline."""
    title = {"title": f"{PROGRAM} {words} --json{', each line' if output.lines else ''}"}
    return json.dumps({**output.schema, **title}, indent=2, ensure_ascii=False) + "\n"
