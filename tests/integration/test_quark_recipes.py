"""Tests that this tool predicts which checkpoints of Quark's recipes sglang loads.

The checkpoints of `quark_samples` have 4 layers; the last layer has 256 experts, so that sglang would fuse them.
sglang's own classes build draft and target model on a CPU and load them without the values of the weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from draft_model_runs import run_orders
from plan_samples import plan_of
from quark_samples import RECIPES, Tiny, write_tiny
from wheels import read, unpacked

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.overlay import write_overlay
from orchestrator.checkpoints.summary import local_summary
from orchestrator.checkpoints.verify import compare_with_config
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.kernels.disk.experts import read_experts
from orchestrator.plan.fusion import compute_fusion
from orchestrator.plan.plan import Plan

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

# Whether sglang 0.5.14 loads: the draft, the draft with our overlay, the target with sglang's default for fusion,
# the target without fusion.
TABLE: Mapping[str, tuple[bool, bool, bool, bool]] = {
    "default": (False, True, True, True),
    "amd52": (False, True, True, True),
    "glm5": (False, True, False, True),
    "wafer": (False, True, False, True),
    "wafer-mx": (False, True, False, True),
    "sharedfp8": (False, True, False, False),
    "mtpfp8": (False, False, True, True),
    "attnfp8": (False, False, False, False),
}
Loaded = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a checkpoint of each recipe, and its overlay."""
    folder = tmp_path_factory.mktemp("recipes")
    for recipe in RECIPES:
        write_tiny(folder / recipe, *Tiny(dense=3, experts=256).quantized(recipe))
        write_overlay(folder / recipe, folder / f"{recipe}-ours", ["mtp-exclude"])
    return folder


@pytest.fixture(scope="module")
def transformers_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a checkpoint as Quark 0.13 does through transformers.

    All experts of a layer are one bf16 tensor, although the config says MXFP4.
    """
    config, header = Tiny().quantized("amd52")
    header = {name: kind for name, kind in header.items() if ".mlp.experts." not in name and ".layers.4." not in name}
    for layer in (1, 2, 3):
        at = f"model.layers.{layer}.mlp.experts"
        header |= {f"{at}.gate_up_proj": ("BF16", (8, 256, 256)), f"{at}.down_proj": ("BF16", (8, 256, 128))}
    return write_tiny(tmp_path_factory.mktemp("made") / "transformers_checkpoint", config, header)


@pytest.fixture(scope="module")
def loaded(checkpoints: Path, transformers_checkpoint: Path, cpu_environment: Venv) -> Mapping[tuple[str, str], Loaded]:
    """Load the targets with sglang's default for fusion (`on`) and unfused (`off`), and with 0.5.14 the drafts.

    Return the results by version and kind.
    """
    folders = [str(checkpoints / recipe) for recipe in RECIPES]
    on, off = ["target", "on", *folders], ["target", "off", *folders]
    drafts = ["load", *map(str, sorted(checkpoints.iterdir()))]
    old = run_orders(cpu_environment, on, [*off, str(transformers_checkpoint)], drafts)
    new = run_orders(cpu_environment, on, off, sources=unpacked("0.5.16"))
    results = dict(zip((("0.5.14", "on"), ("0.5.14", "off"), ("0.5.14", "drafts")), old, strict=True))
    return results | dict(zip((("0.5.16", "on"), ("0.5.16", "off")), new, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_draft_model_loads_only_where_listed(recipe: str, loaded: Mapping[tuple[str, str], Loaded]) -> None:
    drafts = loaded["0.5.14", "drafts"]
    loads = tuple(drafts[name]["loaded"] is not None for name in (recipe, f"{recipe}-ours"))
    assert loads == TABLE[recipe][:2], drafts


@pytest.mark.parametrize("version", ["0.5.14", "0.5.16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_target_model_loads_as_predicted(
    recipe: str, version: str, loaded: Mapping[tuple[str, str], Loaded], checkpoints: Path
) -> None:
    fused, unfused = (loaded[version, kind][recipe] for kind in ("on", "off"))
    assert (fused["loaded"] is not None, unfused["loaded"] is not None) == TABLE[recipe][2:], (fused, unfused)
    fatal = any(
        mismatch.is_fatal_in(version)
        for mismatch in compare_with_config(local_summary(checkpoints / recipe), drafts=False)
    )
    assert fatal == (not TABLE[recipe][3]), "a checkpoint is rejected if it does not load even unfused"
    fusion = compute_fusion(glm(version), read_experts(Checkpoint.local(checkpoints / recipe)))
    if not fatal:
        assert bool(fusion.required_flag) == (not TABLE[recipe][2]), "fusion is turned off if it prevents loading"


def glm(version: str) -> Plan:
    return plan_of("mi355x-tp8-july" if version == "0.5.14" else "mi355x-tp8")


def test_loaded_models_have_no_unset_parameters(loaded: Mapping[tuple[str, str], Loaded]) -> None:
    for results in loaded.values():
        for name, result in results.items():
            if name == "transformers_checkpoint" or not result["loaded"]:
                continue
            unset = {name for name in result["untouched"] if not name.endswith((".k_scale", ".v_scale"))}
            from_target = {"model.embed_tokens.weight", "lm_head.weight"}  # a draft uses those of its target
            unused = {name for name in unset if name.startswith("model.layers.3.self_attn.indexer.")}  # uses layer 2's
            assert unset <= from_target | unused


def test_unprepared_quark_checkpoint_loads_in_sglang_but_is_rejected(
    transformers_checkpoint: Path, loaded: Mapping[tuple[str, str], Loaded]
) -> None:
    assert loaded["0.5.14", "off"]["transformers_checkpoint"]["loaded"] == "GlmMoeDsaForCausalLM"
    assert any(mismatch.fatal for mismatch in compare_with_config(local_summary(transformers_checkpoint), drafts=False))


@pytest.mark.parametrize("version", ["0.5.18", "0.5.19", "0.5.23"])
def test_exclude_list_overrides_fusion_flag(version: str) -> None:
    """sglang checks the exclude list of the checkpoint before the flag."""
    source = read(version, "srt/models/deepseek_v2.py")
    reasons = source.partition("def shared_experts_fusion_disable_reason")[2]
    assert reasons.index("if quant_blocks_") < reasons.index("if get_exec().moe.enforce_shared_experts")
