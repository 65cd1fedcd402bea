"""The JSON Schema of profiles and catalog entries, for editors; generated from the pydantic models."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from orchestrator.profiles.layers import ENTRY_KEYS, EXTENDS, USE
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
        for entry_key in ENTRY_KEYS:
            schema["properties"][entry_key] = _entry_schema(entry_key, schema["$defs"])
        extends = {
            "type": "string",
            "description": "profile to extend, by name or path; this file overrides its values",
        }
        schema["properties"][EXTENDS] = extends
        schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [EXTENDS]}]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"deploy: {kind}"}
    return json.dumps({**schema, **head}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _entry_schema(entry_key: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a catalog entry inside a profile: the name or path of a file, or keys.

    No key is required here: a file may provide the others.
    """
    own = KINDS[entry_key].model_json_schema()
    for name, definition in own.pop("$defs").items():
        definitions.setdefault(name, definition)
        if name.endswith("Section"):
            definitions[name].pop("required", None)
    use = {
        "type": "string",
        "description": f"name or path of the {entry_key} whose values the other keys override",
    }
    keys = {
        "type": "object",
        "additionalProperties": False,
        "properties": {USE: use, **own["properties"]},
        "description": f"a complete {entry_key}, or values that override those of the file in `{USE}`",
    }
    named = {"type": "string", "description": f"the name of its file, or its path, such as ./{entry_key}.yaml"}
    return {"anyOf": [named, keys], "description": f"{entry_key}: the name of its file, its path, or its keys"}
