"""Tests of the exclude-list transform with sglang's own QuarkConfig and draft classes, on a CPU.

The checkpoints have GLM-5.2's structure with smaller dimensions. Only the GPU's name is faked.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from draft_model_config import EXPERTS
from draft_model_runs import run, run_lines
from wheels import unpacked

from orchestrator.checkpoints.overlay import write_overlay
from orchestrator.hosts.venvs.venv import Venv

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

KINDS = ("bf16", "mxfp4")  # the dtype of the MTP layer's routed experts; the rest of that layer is bf16 in both
_GATE_AND_UP = ("gate_proj", "up_proj")


@pytest.fixture(scope="module")
def checkpoints(cpu_environment: Venv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return checkpoints of both kinds: unmodified, with the exclude list of the blog, and with our overlay."""
    folder = tmp_path_factory.mktemp("checkpoints")
    makes = [word for kind in KINDS for word in ("make", str(folder / kind), kind, "--")]
    run(cpu_environment, *makes[:-1])
    for kind in KINDS:
        copy_with_blog_excludes(folder / kind, folder / f"{kind}-literal")
        write_overlay(folder / kind, folder / f"{kind}-ours", ["mtp-exclude"])
    return folder


@pytest.fixture(scope="module")
def old_results(checkpoints: Path, cpu_environment: Venv) -> Mapping[str, Mapping[str, Any]]:
    """Load all six checkpoints with sglang 0.5.14, the environment's own."""
    return load(cpu_environment, sorted(checkpoints.iterdir()))


@pytest.fixture(scope="module")
def new_results(checkpoints: Path, cpu_environment: Venv) -> Mapping[str, Mapping[str, Any]]:
    """Load the two unmodified checkpoints with sglang 0.5.16."""
    return load(cpu_environment, [checkpoints / kind for kind in KINDS], sources=unpacked("0.5.16"))


def methods(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the quantization methods of `eh_proj`, the routed experts and the shared expert of the MTP layer."""
    return tuple(result["methods"].values())


def test_bf16_modules_are_built_as_mxfp4_without_patch(old_results: Mapping[str, Mapping[str, Any]]) -> None:
    for kind in KINDS:
        assert methods(old_results[kind]) == ("QuarkLinearMethod", "QuarkFusedMoEMethod", "QuarkLinearMethod")
        assert old_results[kind]["loaded"] is None


def test_load_errors_without_patch_match_the_report(old_results: Mapping[str, Mapping[str, Any]]) -> None:
    """The report has larger dimensions: `The size of tensor a (3072) must match … b (6144)` and uint8 6144x6144.

    The shared expert fails at an assertion without a message, in `load_merged_column_weight` of `layers/parameter.py`.
    """
    size = "RuntimeError: The size of tensor a (128) must match the size of tensor b (256) at non-singleton dimension 1"
    uint8 = (
        "AssertionError: param.shape=torch.Size([256, 256]) param.dtype=torch.uint8 "
        "loaded_weight.shape=torch.Size([256, 512]) loaded_weight.dtype=torch.bfloat16"
    )
    eh_proj = {"eh_proj.weight": uint8}
    experts = {f"mlp.experts.{expert}.{name}.weight": size for expert in range(EXPERTS) for name in _GATE_AND_UP}
    shared = {f"mlp.shared_experts.{name}.weight": "AssertionError: " for name in _GATE_AND_UP}

    assert old_results["bf16"]["errors"] == eh_proj | experts | shared
    assert old_results["bf16-literal"]["errors"] == eh_proj | experts
    assert old_results["mxfp4"]["errors"] == eh_proj | shared
    assert old_results["mxfp4-literal"]["errors"] == eh_proj


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_alias_alone_fixes_only_shared_expert(old_results: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    result = old_results[f"{kind}-literal"]

    assert methods(result) == ("QuarkLinearMethod", "QuarkFusedMoEMethod", "UnquantizedLinearMethod")
    assert result["loaded"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_draft_model_loads_with_patch(old_results: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    experts = "UnquantizedFusedMoEMethod" if kind == "bf16" else "QuarkFusedMoEMethod"

    assert methods(old_results[f"{kind}-ours"]) == ("UnquantizedLinearMethod", experts, "UnquantizedLinearMethod")
    assert old_results[f"{kind}-ours"]["loaded"] == "DeepseekV3ForCausalLMNextN"


@pytest.mark.parametrize("kind", KINDS)
def test_sources_with_dedicated_draft_class_need_no_patch(
    new_results: Mapping[str, Mapping[str, Any]], kind: str
) -> None:
    assert new_results[kind]["loaded"] == "GlmMoeDsaForCausalLMNextN"


@pytest.mark.parametrize("kind", KINDS)
def test_patched_exclude_list_matches_later_sglang(
    new_results: Mapping[str, Mapping[str, Any]], checkpoints: Path, kind: str
) -> None:
    config = json.loads((checkpoints / f"{kind}-ours" / "config.json").read_text())

    assert sorted(config["quantization_config"]["exclude"]) == new_results[kind]["exclude"]


def copy_with_blog_excludes(checkpoint: Path, copy: Path) -> None:
    """Copy a checkpoint and repeat its entries of the MTP layer under `model.decoder.`, as wafer.ai/blog/glm52-amd."""
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text())
    exclude = config["quantization_config"]["exclude"]
    layer = "model.layers.78."
    exclude += [f"model.decoder.{name.removeprefix(layer)}" for name in exclude if name.startswith(layer)]
    (copy / "config.json").write_text(json.dumps(config))


def load(environment: Venv, folders: list[Path], *, sources: Path | None = None) -> dict[str, dict[str, Any]]:
    return run_lines(environment, "load", *map(str, folders), sources=sources)
