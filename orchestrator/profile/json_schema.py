"""The JSON Schema of a profile and of its parts, for editors; generated from the pydantic models."""

import json
from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from orchestrator.profile.layers import EXTENDS, PARTS
from orchestrator.profile.schema import EngineFile, HardwareFile, ModelFile, Profile

KINDS: Final[Mapping[str, type[BaseModel]]] = {
    "profile": Profile,
    "hardware": HardwareFile,
    "model": ModelFile,
    "engine": EngineFile,
}


def json_schema(kind: str, model: type[BaseModel] | None = None) -> str:
    """The schema of one kind of file as text, with a newline at the end: one of `KINDS`, or of the `model` given."""
    schema = (model or KINDS[kind]).model_json_schema()
    if kind == "profile":  # a profile names its parts; what they say stands in files of their own
        for part in PARTS:
            schema["properties"][part] = {"type": "string", "description": f"{part}: the name of its file"}
        extends = {"type": "string", "description": "another profile, of which this one says what differs"}
        schema["properties"][EXTENDS] = extends
        schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [EXTENDS]}]
    schema["$defs"] = _used(schema)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"deploy: {kind}"}
    return json.dumps({**schema, **head}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _used(schema: Mapping[str, object]) -> dict[str, object]:
    """The definitions that are still referred to."""
    definitions = schema.get("$defs")
    known = definitions if isinstance(definitions, dict) else {}
    waiting = [value for key, value in schema.items() if key != "$defs"]
    used: dict[str, object] = {}
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            if name in known and name not in used:
                used[name] = known[name]
                waiting.append(known[name])
    return used
