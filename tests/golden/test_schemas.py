"""The JSON Schemas beside the profiles are what the models say. `UPDATE_GOLDEN=1 pytest tests/golden` writes them."""

import json
import os
from pathlib import Path

import pytest

from orchestrator.bench import Workload
from orchestrator.core.paths import data_root
from orchestrator.profile.json_schema import KINDS, json_schema
from orchestrator.quantisation import Recipe
from orchestrator.sweep import SpaceFile

PROFILES = data_root() / "profiles"
FOLDERS = {
    "profile": ".",
    "hardware": "hardware",
    "model": "models",
    "engine": "engines",
    "workload": "workloads",
    "recipe": "recipes",
}
MODELS = {**KINDS, "workload": Workload, "space": SpaceFile, "recipe": Recipe}
FILES = [(path, kind) for kind, folder in FOLDERS.items() for path in sorted((PROFILES / folder).glob("*.yaml"))]


@pytest.mark.parametrize("kind", MODELS)
def test_the_schema_beside_the_profiles_is_the_models(kind: str) -> None:
    path = PROFILES / f"{kind}.schema.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json_schema(kind, MODELS[kind]))
    assert path.read_text() == json_schema(kind, MODELS[kind]), "UPDATE_GOLDEN=1 pytest tests/golden writes it anew"


@pytest.mark.parametrize(("path", "kind"), FILES, ids=[path.name for path, _ in FILES])
def test_every_file_names_its_schema_in_its_first_line(path: Path, kind: str) -> None:
    _, _, named = path.read_text().partition("\n")[0].partition("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == PROFILES / f"{kind}.schema.json"


def test_a_profile_names_its_parts_in_the_schema() -> None:
    schema = json.loads(json_schema("profile"))
    parts = [schema["properties"][part]["anyOf"][0]["type"] for part in ("hardware", "model", "engine")]
    assert parts == ["string"] * 3
    assert "HardwareSection" not in schema["$defs"]
    assert schema["additionalProperties"] is False
