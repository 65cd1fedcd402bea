"""The exclude-list transform against sglang's own QuarkConfig and draft classes, on CPU.

Checkpoints have GLM-5.2's structure with shrunken dimensions; nothing of sglang is replaced but the GPU's name.
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
    """Both kinds, each as it is, with the exclude list copied as the blog has it, and with our overlay."""
    folder = tmp_path_factory.mktemp("checkpoints")
    makes = [word for kind in KINDS for word in ("make", str(folder / kind), kind, "--")]
    run(cpu_environment, *makes[:-1])
    for kind in KINDS:
        copy_literally(folder / kind, folder / f"{kind}-literal")
        write_overlay(folder / kind, folder / f"{kind}-ours", ["mtp-exclude"])
    return folder


@pytest.fixture(scope="module")
def old(checkpoints: Path, cpu_environment: Venv) -> Mapping[str, Mapping[str, Any]]:
    """What sglang 0.5.14, the environment's own, makes of all six."""
    return load(cpu_environment, sorted(checkpoints.iterdir()))


@pytest.fixture(scope="module")
def fixed(checkpoints: Path, cpu_environment: Venv) -> Mapping[str, Mapping[str, Any]]:
    """What sglang 0.5.16 makes of the two as they are."""
    return load(cpu_environment, [checkpoints / kind for kind in KINDS], sources=unpacked("0.5.16"))


def methods(result: Mapping[str, Any]) -> tuple[str, ...]:
    """How `eh_proj`, the routed experts and the shared expert of the MTP layer were built."""
    return tuple(result["methods"].values())


def test_bf16_modules_are_built_as_mxfp4_without_patch(old: Mapping[str, Mapping[str, Any]]) -> None:
    for kind in KINDS:
        assert methods(old[kind]) == ("QuarkLinearMethod", "QuarkFusedMoEMethod", "QuarkLinearMethod")
        assert old[kind]["loaded"] is None


def test_load_errors_without_patch_match_the_report(old: Mapping[str, Mapping[str, Any]]) -> None:
    """`The size of tensor a (3072) must match … b (6144)` and uint8 6144x6144, at our dimensions.

    The shared expert fails at the assertion without a message of `layers/parameter.py`, `load_merged_column_weight`.
    """
    size = "RuntimeError: The size of tensor a (128) must match the size of tensor b (256) at non-singleton dimension 1"
    uint8 = (
        "AssertionError: param.shape=torch.Size([256, 256]) param.dtype=torch.uint8 "
        "loaded_weight.shape=torch.Size([256, 512]) loaded_weight.dtype=torch.bfloat16"
    )
    eh_proj = {"eh_proj.weight": uint8}
    experts = {f"mlp.experts.{expert}.{name}.weight": size for expert in range(EXPERTS) for name in _GATE_AND_UP}
    shared = {f"mlp.shared_experts.{name}.weight": "AssertionError: " for name in _GATE_AND_UP}

    assert old["bf16"]["errors"] == eh_proj | experts | shared
    assert old["bf16-literal"]["errors"] == eh_proj | experts
    assert old["mxfp4"]["errors"] == eh_proj | shared
    assert old["mxfp4-literal"]["errors"] == eh_proj


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_alias_alone_fixes_only_shared_expert(old: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    assert methods(old[f"{kind}-literal"]) == ("QuarkLinearMethod", "QuarkFusedMoEMethod", "UnquantizedLinearMethod")
    assert old[f"{kind}-literal"]["loaded"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_draft_model_loads_with_patch(old: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    experts = "UnquantizedFusedMoEMethod" if kind == "bf16" else "QuarkFusedMoEMethod"

    assert methods(old[f"{kind}-ours"]) == ("UnquantizedLinearMethod", experts, "UnquantizedLinearMethod")
    assert old[f"{kind}-ours"]["loaded"] == "DeepseekV3ForCausalLMNextN"


@pytest.mark.parametrize("kind", KINDS)
def test_sources_with_dedicated_draft_class_need_no_patch(fixed: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    assert fixed[kind]["loaded"] == "GlmMoeDsaForCausalLMNextN"


@pytest.mark.parametrize("kind", KINDS)
def test_patched_exclude_list_matches_later_sglang(
    fixed: Mapping[str, Mapping[str, Any]], checkpoints: Path, kind: str
) -> None:
    config = json.loads((checkpoints / f"{kind}-ours" / "config.json").read_text())

    assert sorted(config["quantization_config"]["exclude"]) == fixed[kind]["exclude"]


def copy_literally(checkpoint: Path, copy: Path) -> None:
    """wafer.ai/blog/glm52-amd: the entries of the MTP layer, repeated under `model.decoder.`."""
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text())
    exclude = config["quantization_config"]["exclude"]
    layer = "model.layers.78."
    exclude += [f"model.decoder.{name.removeprefix(layer)}" for name in exclude if name.startswith(layer)]
    (copy / "config.json").write_text(json.dumps(config))


def load(environment: Venv, folders: list[Path], *, sources: Path | None = None) -> dict[str, dict[str, Any]]:
    return run_lines(environment, "load", *map(str, folders), sources=sources)
