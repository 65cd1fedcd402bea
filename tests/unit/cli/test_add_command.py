"""Test the JSON output, exit code and completions of `deploy add`."""

import json
from pathlib import Path

import pytest
from config_samples import KIMI_K2, write_config, write_public
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.cli.options import complete_names
from orchestrator.core.errors import DeployError
from orchestrator.hosts.survey import Survey


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("orchestrator.planner.add.host_profile.inventories", lambda _: ())
    monkeypatch.setattr("orchestrator.planner.add.host_profile.survey", lambda *_: Survey({}))


def deploy(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


def test_json_output_lists_facts_and_choices(tmp_path: Path) -> None:
    checkpoint = write_public(tmp_path / "gpt-oss-120b", "gpt-oss-120b")
    report = json.loads(deploy(f"add model {checkpoint} --json").stdout)
    assert {"key": "layers", "value": 36, "from": "config.json: num_hidden_layers"} in report["facts"]
    assert {
        "key": "kv_cache.sliding_layers",
        "value": 18,
        "from": "config.json: `sliding_attention` in layer_types",
    } in report["facts"]
    report = json.loads(deploy("add profile --model gpt-oss-120b --hardware h200 --json").stdout)
    assert report["capacity"]["dp_ranks"] == 8
    assert any(choice["key"] == "layout.tp" and choice["value"] == "1" for choice in report["choices"])


def test_rejected_model_writes_nothing(tmp_path: Path) -> None:
    checkpoint = write_config(tmp_path / "broken", {**KIMI_K2, "num_hidden_layers": 60}, shape=KIMI_K2)
    result = deploy(f"add model {checkpoint}")
    assert isinstance(result.exception, DeployError)
    assert result.exception.exit_code == 4
    assert not (tmp_path / "home").exists()


def test_shell_completes_catalog_entry_names() -> None:
    assert complete_names("MODEL")("ti") == ["tiny"]
    assert "mi355x" in complete_names("HARDWARE")("mi3")
    assert "sglang-0.5.16-rocm" in complete_names("ENGINE")("sglang-0.5.16")
