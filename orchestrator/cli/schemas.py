"""The JSON Schemas of the files that a user writes, for editors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from orchestrator.bench.workload import Workload
from orchestrator.checkpoints.quantize.recipe import Recipe
from orchestrator.core.files import atomic_write_all
from orchestrator.core.safe_paths import FileName
from orchestrator.experiments.sweep.space import SpaceFile
from orchestrator.profiles.json_schema import KINDS, json_schema

SCHEMAS: Final[Mapping[str, type[BaseModel]]] = {**KINDS, "workload": Workload, "space": SpaceFile, "recipe": Recipe}


def schema_file(kind: str) -> FileName:
    """Return the file name of a schema, as used in the first line of a profile."""
    return FileName(f"{kind}.schema.json")


def write_schemas(directory: Path) -> tuple[Path, ...]:
    """Write the schema of every kind of file into a directory. Raises OSError."""
    texts = {directory / schema_file(kind): json_schema(kind, model) for kind, model in SCHEMAS.items()}
    atomic_write_all((path, text, 0o644) for path, text in texts.items())
    return tuple(texts)
