"""The JSON Schemas for editors, which the installation of the package writes to `profiles/`."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.schema import SCHEMAS, json_schema, schema_file, write_schemas
from orchestrator.core.paths import data_root

PROFILES = data_root() / "profiles"
FOLDERS = {
    "profile": ".",
    "hardware": "hardware",
    "model": "models",
    "engine": "engines",
    "network": "networks",
    "workload": "workloads",
    "recipe": "recipes",
}
FILES = [(path, kind) for kind, folder in FOLDERS.items() for path in sorted((PROFILES / folder).glob("*.yaml"))]


def test_schema_is_written_for_every_kind(tmp_path: Path) -> None:
    assert {path.name for path in write_schemas(tmp_path)} == {schema_file(kind) for kind in SCHEMAS}
    for kind in SCHEMAS:
        assert json.loads((tmp_path / schema_file(kind)).read_text())["title"] == f"deploy: {kind}"


@pytest.mark.parametrize(("path", "kind"), FILES, ids=[path.name for path, _ in FILES])
def test_first_line_of_every_file_references_its_schema(path: Path, kind: str) -> None:
    _, _, named = path.read_text().partition("\n")[0].partition("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == PROFILES / schema_file(kind)


def test_profile_schema_references_catalog_entries_by_name() -> None:
    schema = json.loads(json_schema("profile"))
    types = [schema["properties"][entry_key]["anyOf"][0]["type"] for entry_key in ("hardware", "model", "engine")]
    assert types == ["string"] * 3
    assert schema["additionalProperties"] is False
