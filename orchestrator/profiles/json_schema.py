"""The JSON Schema of profiles and catalog entries, for editors; generated from the pydantic models."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from orchestrator.profiles.layers import EXTENDS, PARTS, USE
from orchestrator.profiles.schema import EngineFile, HardwareFile, ModelFile, Profile

KINDS: Final[Mapping[str, type[BaseModel]]] = {
    "profile": Profile,
    "hardware": HardwareFile,
    "model": ModelFile,
    "engine": EngineFile,
}


def json_schema(kind: str, model: type[BaseModel] | None = None) -> str:
    """Return the schema of one of `KINDS`, or of `model`, as text with a final newline."""
    schema = (model or KINDS[kind]).model_json_schema()
    if kind == "profile":  # a profile names catalog entries, or overrides their keys
        for part in PARTS:
            schema["properties"][part] = _part(part, schema["$defs"])
        extends = {
            "type": "string",
            "description": "another profile, by name or path, of which this one says what differs",
        }
        schema["properties"][EXTENDS] = extends
        schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [EXTENDS]}]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"deploy: {kind}"}
    return json.dumps({**schema, **head}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _part(part: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a catalog entry inside a profile: the name or path of a file, or keys.

    No key is required here: a file may provide the others.
    """
    own = KINDS[part].model_json_schema()
    for name, definition in own.pop("$defs").items():
        definitions.setdefault(name, definition)
        if name.endswith("Section"):
            definitions[name].pop("required", None)
    use = {
        "type": "string",
        "description": f"the {part} over whose file the other keys are laid: its name, or its path",
    }
    keys = {
        "type": "object",
        "additionalProperties": False,
        "properties": {USE: use, **own["properties"]},
        "description": f"the {part} itself, or single values over the file that `{USE}` names",
    }
    named = {"type": "string", "description": f"the name of its file, or its path, such as ./{part}.yaml"}
    return {"anyOf": [named, keys], "description": f"{part}: the name of its file, its path, or its keys"}
