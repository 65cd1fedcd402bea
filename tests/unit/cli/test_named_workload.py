"""`deploy show` and `deploy profiles` name the workload that `deploy bench` uses."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.profiles import command as profiles
from orchestrator.cli.show import command as show


@pytest.fixture
def without_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/plain.yaml").write_text("extends: cpu-tiny\nworkload: null\n")
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    return "plain"


def test_show_names_default_workload(without_workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(profile=without_workload)
    text = " ".join(capsys.readouterr().out.split())
    assert "workload short (the default of `bench`): 1,000 tokens in, 128 out; SLO: TTFT p95 at most 5 s" in text
    show(profile="cpu-tiny")
    assert "workload smoke-tiny: 500 tokens in, 24 out, 60% of each" in " ".join(capsys.readouterr().out.split())


def test_profiles_lists_the_workload(without_workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    profiles(json=True)
    listed = {entry["name"]: entry["workload"] for entry in json.loads(capsys.readouterr().out)["profiles"]}
    assert (listed[without_workload], listed["cpu-tiny"]) == ("short", "smoke-tiny")
    assert listed["mi355x-tp4x2"] == "wafer-20k-1k"  # inherited from its base profile
