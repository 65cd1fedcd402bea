"""The JSON Schema of profiles and catalog entries, for editors; generated from the pydantic models."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from orchestrator.profiles.layers import EXTENDS, PARTS, SHARED, USE
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
    schema["$defs"] = _used(schema)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"deploy: {kind}"}
    return json.dumps({**schema, **head}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _part(part: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a catalog entry inside a profile: the name or path of a file, or keys.

    No key is required here: a file may provide the others.
    """
    own = KINDS[part].model_json_schema()
    for name, definition in own.pop("$defs").items():
        definitions.setdefault(name, definition)
    for key, property_schema in own["properties"].items():
        for section in () if key in SHARED else _sections(property_schema):
            definitions[section].pop("required", None)
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


def _sections(text: Mapping[str, Any]) -> Iterator[str]:
    """Yield the definitions of mappings under a key.

    Mappings in a list are excluded: the list is replaced as a whole.
    """
    nested = text.get("additionalProperties")
    for item in (text, *text.get("anyOf", ()), *([nested] if isinstance(nested, dict) else [])):
        if "$ref" in item:
            yield str(item["$ref"]).removeprefix("#/$defs/")


def _used(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the definitions that are still referenced."""
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
