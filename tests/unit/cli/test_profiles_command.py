"""Test `deploy profiles`: grouped by model, and filtered by hardware or model."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from orchestrator.cli.main import app


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


def deploy(*words: str) -> Result:
    return CliRunner().invoke(app, ["profiles", *words])


def test_profiles_are_grouped_by_model() -> None:
    lines = deploy().stdout.splitlines()
    index = lines.index("glm-5.3-mxfp4:")
    assert [line.split()[0] for line in lines[index + 1 : index + 3]] == ["mi355x-glm-5.3-tp4dp2", "mi355x-glm-5.3-tp8"]
    assert lines[index + 1].startswith("  mi355x-glm-5.3-tp4dp2")
    heads = [line.rstrip(":") for line in lines[1 : lines.index("")] if not line.startswith(" ")]
    assert heads == sorted(heads)
    assert any(line.startswith("hardware ") for line in lines)
    assert any(line.startswith("engines ") for line in lines)


def test_profiles_are_filtered_by_hardware_and_model() -> None:
    lines = deploy("--hardware", "mi300x", "--model", "FLASH").stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == ["mi300x-deepseek-v4-flash-tp8", "mi300x-glm-5.3-flash-tp8"]
    assert not any(line.startswith(("hardware", "models", "engines")) for line in lines)
    listing = json.loads(deploy("--hardware", "cpu", "--json").stdout)
    assert [entry["name"] for entry in listing["profiles"]] == ["cpu-tiny", "cpu-tiny-1p1d"]
    assert listing["engines"] == []


def test_filter_without_matches_is_reported() -> None:
    result = deploy("--model", "nope")
    assert (result.exit_code, result.stdout.strip()) == (0, "")
    assert "no such profile; `deploy profiles` lists all" in result.stderr
    assert result.stdout == ""
    unknown = deploy("--hardware", "mi35")
    assert "no hardware `mi35` found" in str(unknown.exception)
