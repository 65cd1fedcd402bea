"""`deploy up --dry-run`: steps before warnings; files are written or printed on request."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError
from orchestrator.planner.planning import load, profile_names


@pytest.fixture(autouse=True)
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plan_warnings", "estimate"):
        monkeypatch.setattr(f"orchestrator.planner.{module}.local_config", lambda _: None)


def dry_run(home: Path, profile: str, *more: str) -> Result:
    words = ["up", profile, "--dry-run", *more]
    return CliRunner().invoke(app, words, env={"DEPLOY_HOME": str(home / "home")})


@pytest.mark.parametrize("profile", [name for name in profile_names() if not name.endswith("-july")])
def test_dry_run_prints_steps_before_warnings(tmp_path: Path, profile: str) -> None:
    result = dry_run(tmp_path, profile)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["step", "action", "estimate"]
    total = next(index for index, line in enumerate(lines) if line.startswith("total "))
    assert not [line for line in lines[: total + 1] if line.startswith(("note:", "warning:", "hint:"))]
    assert len(lines) <= 60


def test_dry_run_writes_all_files_to_output_directory(tmp_path: Path) -> None:
    result = dry_run(tmp_path, "mi355x-tp8", "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"plan.json", "server.sh", "image/Dockerfile"} <= written
    assert json.loads((tmp_path / "out/plan.json").read_text())["profile"] == "mi355x-tp8"


def test_dry_run_json_contains_plan_steps_and_files(tmp_path: Path) -> None:
    output = json.loads(dry_run(tmp_path, "mi355x-tp8", "--json").stdout)
    plan = load("mi355x-tp8").plan
    assert (output["name"], output["digest"], output["plan"]["engine"]["name"]) == (
        *("mi355x-tp8", plan.digest, "sglang-0.5.16-rocm"),
    )
    assert [step["name"] for step in output["steps"]] == ["image", "checkpoint", "table", "start"]
    assert all(step["seconds"] > 0 for step in output["steps"])
    assert [warning["id"] for warning in output["warnings"]] == [warning.id for warning in plan.warnings]
    assert "server.sh" in {file["path"] for file in output["files"]}


def test_output_option_requires_dry_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["up", "cpu-tiny", "--output", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
