"""The JSON Schema of a profile and of its parts, for editors; generated from the pydantic models."""

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
    """The schema of one kind of file as text, with a newline at the end: one of `KINDS`, or of the `model` given."""
    schema = (model or KINDS[kind]).model_json_schema()
    if kind == "profile":  # a profile names its parts, or says something over them
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
    """A part of a profile: the name or path of its file, or its keys; those of a file's mapping need not all be said.

    Nothing is required of keys here: what a file says is laid under them.
    """
    own = KINDS[part].model_json_schema()
    for name, definition in own.pop("$defs").items():
        definitions.setdefault(name, definition)
    for key, said in own["properties"].items():
        for section in () if key in SHARED else _sections(said):
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


def _sections(said: Mapping[str, Any]) -> Iterator[str]:
    """The definitions of mappings that a key holds; those in a list are replaced with it, and stay whole."""
    nested = said.get("additionalProperties")
    for each in (said, *said.get("anyOf", ()), *([nested] if isinstance(nested, dict) else [])):
        if "$ref" in each:
            yield str(each["$ref"]).removeprefix("#/$defs/")


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
