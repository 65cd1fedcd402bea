"""Check rendered objects against published schemas of custom resources."""

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema

_SAMPLES = Path(__file__).parents[1] / "samples"


def _strict(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the schema with unknown fields forbidden, which the API server would silently drop."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    return strict


def check_crd(manifest: dict[str, Any], project: str, version: str) -> None:
    """Check an object against the schema of that version of a project. Raises jsonschema.ValidationError."""
    schema = json.loads(gzip.decompress((_SAMPLES / project / f"{version}.json.gz").read_bytes()))
    jsonschema.Draft202012Validator(_strict(schema)).validate(manifest)
