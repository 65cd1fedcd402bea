"""The JSON Schemas of the files that a user writes, for editors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from orchestrator.bench import Workload
from orchestrator.core.files import write_whole
from orchestrator.core.safe_paths import FileName
from orchestrator.profile import KINDS, json_schema
from orchestrator.quantisation import Recipe
from orchestrator.sweep import SpaceFile

SCHEMAS: Final[Mapping[str, type[BaseModel]]] = {**KINDS, "workload": Workload, "space": SpaceFile, "recipe": Recipe}


def schema_file(kind: str) -> FileName:
    """Return the name of a schema's file, as the first line of a profile refers to it."""
    return FileName(f"{kind}.schema.json")


def write_schemas(directory: Path) -> tuple[Path, ...]:
    """Write the schema of every kind of file into a directory. Raises OSError."""
    return tuple(
        write_whole(directory / schema_file(kind), json_schema(kind, model)) for kind, model in SCHEMAS.items()
    )
