"""Test the checkpoint of `deploy reproduce`: the published kind if the host has it, else the default."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.reproduce import command as reproduce
from orchestrator.core.catalog import Catalog, EntryKind

ROUTED = "glm-5.2-mxfp4-routed"
CONFIG = {
    "hidden_size": 6144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "quantization_config": {"quant_method": "quark", "exclude": ["model.layers.3.mlp.shared_experts.up_proj"]},
}


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in the catalog entry; it does not exist yet."""
    home, directory = tmp_path / "home", tmp_path / "routed"
    monkeypatch.setenv("DEPLOY_HOME", str(home))
    text = Catalog.shipped().path(EntryKind.MODEL, ROUTED).read_text()
    entry = home / EntryKind.MODEL.file(ROUTED)
    entry.parent.mkdir(parents=True)
    entry.write_text(text.replace("/mnt/GLM-5.2-MXFP4-routed", str(directory)))
    return directory


def stage(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))


def steps(capsys: pytest.CaptureFixture[str], tmp_path: Path, **options: object) -> tuple[str, str]:
    reproduce("wafer-glm52", dry_run=True, output=tmp_path / "results", **options)  # type: ignore[arg-type]
    return capsys.readouterr()


def test_default_checkpoint_is_used_and_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not checkpoint.exists()
    table, notes = steps(capsys, tmp_path)
    assert ROUTED not in table
    assert f"checkpoint: `glm-5.2-mxfp4`, amd/GLM-5.2-MXFP4, not of the published kind, as `{ROUTED}` is" in notes


def test_published_kind_of_checkpoint_is_used_if_staged(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(checkpoint)
    table, notes = steps(capsys, tmp_path, ablation=["baseline-checkpoint"], tune=True)
    ups = [line.split("  ")[0] for line in table.splitlines() if line.startswith("deploy up")]
    assert len(ups) == 5
    assert all(f"--set model={ROUTED}" in up for up in ups[:-1])
    assert ROUTED not in ups[-1], "the ablation has another checkpoint"
    assert table.count("deploy kernels tune") == 4
    assert table.count("--retune-derived") == 4
    assert f"checkpoint: `{ROUTED}`, {checkpoint}, of the published kind" in notes
    assert ROUTED not in steps(capsys, tmp_path, set_=["model=glm-5.2-mxfp4"])[0], "the user's choice has priority"


@pytest.mark.usefixtures("checkpoint")
def test_baseline_without_checkpoint_prints_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, notes = steps(capsys, tmp_path)
    assert "glm-5.2-fp8" not in table
    message = "not measured: the baseline of gsm8k, gpqa-diamond, as `zai-org/GLM-5.2-FP8` is not on the host; "
    message += "`deploy reproduce wafer-glm52 --ablation baseline-checkpoint` measures it too (`--dry-run`: its time"
    assert message in notes

    stage(tmp_path / "home/models/glm-5.2-fp8")
    table, notes = steps(capsys, tmp_path)
    assert table.count("deploy eval mi355x-tp4dp2-evals-baseline-checkpoint") == 2
    assert "not measured" not in notes
    assert "glm-5.2-fp8" not in steps(capsys, tmp_path, no_evals=True)[0]


@pytest.mark.usefixtures("checkpoint")
def test_gated_dataset_is_reported_in_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    gated = "the questions of `gpqa-diamond` are gated, and {}: accept the terms at https://huggingface.co/datasets/"
    for token, state in (("", "no token is set"), ("hf_x", "the token here must have access")):
        monkeypatch.setenv("HF_TOKEN", token)
        notes = steps(capsys, tmp_path)[1]
        assert gated.format(state) in notes
        assert "`hf auth login`, or set HF_TOKEN to a token with read access" in notes
    for options in ({"no_evals": True}, {"dataset": tmp_path}, {"profile_": "b200-tp8"}):
        assert "gated" not in steps(capsys, tmp_path, **options)[1]


def test_single_profile_is_reproduced_at_its_gpu_price(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published B200 figure is for its own workload; its engine and flags are unknown."""
    stage(checkpoint)
    table, notes = steps(capsys, tmp_path, profile_="b200-tp8")
    words = [line.split("  ")[0].split()[1:3] for line in table.splitlines() if line.startswith("deploy ")]
    assert [" ".join(pair) for pair in words] == [
        "preflight --profile",
        "build --profile",
        "stage --profile",
        "up --profile",
        "smoke b200-tp8",
        "bench b200-tp8",
        "report " + str(tmp_path / "results"),
        "down b200-tp8",
    ]
    assert "--workload wafer-20k-1k" in table
    assert "at 15.60 USD per node-hour (InferenceX total cost of ownership" in notes
    assert "checkpoint: `glm-5.2-nvfp4`, nvidia/GLM-5.2-NVFP4\n" in notes
    table, _ = steps(capsys, tmp_path, profile_="mi355x-tp4dp2")
    ups = [line for line in table.splitlines() if line.startswith("deploy up")]
    assert len(ups) == 2, "with and without speculation, as published"
