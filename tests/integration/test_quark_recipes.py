"""What sglang's own classes make of what Quark writes, recipe by recipe, beside what this tool says of it beforehand.

Checkpoints are those of `quark_samples`, of 4 layers, the last one with experts: 256, so that sglang would fuse them.
Draft and target are built and loaded, up to the weights, on a CPU.
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
from orchestrator.plan.fusion import decide_fusion
from orchestrator.plan.plan import Plan

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

# Whether it loads: the draft as it is, the draft with our overlay, the target by sglang's own decision, the target
# without fusion. By sglang 0.5.14.
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
    """One by each recipe, and its overlay beside it."""
    folder = tmp_path_factory.mktemp("recipes")
    for recipe in RECIPES:
        write_tiny(folder / recipe, *Tiny(dense=3, experts=256).quantized(recipe))
        write_overlay(folder / recipe, folder / f"{recipe}-ours", ["mtp-exclude"])
    return folder


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quark 0.13 through transformers: one tensor in bf16 for all experts of a layer, and a config that says MXFP4."""
    config, header = Tiny().quantized("amd52")
    header = {name: kind for name, kind in header.items() if ".mlp.experts." not in name and ".layers.4." not in name}
    for layer in (1, 2, 3):
        at = f"model.layers.{layer}.mlp.experts"
        header |= {f"{at}.gate_up_proj": ("BF16", (8, 256, 256)), f"{at}.down_proj": ("BF16", (8, 256, 128))}
    return write_tiny(tmp_path_factory.mktemp("made") / "ordinary", config, header)


@pytest.fixture(scope="module")
def loaded(checkpoints: Path, ordinary: Path, cpu_environment: Venv) -> Mapping[tuple[str, str], Loaded]:
    """By version: the targets, fused (`on`) where sglang decides so, and unfused (`off`); of 0.5.14 also the drafts."""
    folders = [str(checkpoints / recipe) for recipe in RECIPES]
    on, off = ["target", "on", *folders], ["target", "off", *folders]
    drafts = ["load", *map(str, sorted(checkpoints.iterdir()))]
    old = run_orders(cpu_environment, on, [*off, str(ordinary)], drafts)
    new = run_orders(cpu_environment, on, off, sources=unpacked("0.5.16"))
    found = dict(zip((("0.5.14", "on"), ("0.5.14", "off"), ("0.5.14", "drafts")), old, strict=True))
    return found | dict(zip((("0.5.16", "on"), ("0.5.16", "off")), new, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_draft_model_loads_as_listed(recipe: str, loaded: Mapping[tuple[str, str], Loaded]) -> None:
    drafts = loaded["0.5.14", "drafts"]
    loads = tuple(drafts[name]["loaded"] is not None for name in (recipe, f"{recipe}-ours"))
    assert loads == TABLE[recipe][:2], drafts


@pytest.mark.parametrize("version", ["0.5.14", "0.5.16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_target_model_loads_as_predicted(
    recipe: str, version: str, loaded: Mapping[tuple[str, str], Loaded], checkpoints: Path
) -> None:
    fused, apart = (loaded[version, kind][recipe] for kind in ("on", "off"))
    assert (fused["loaded"] is not None, apart["loaded"] is not None) == TABLE[recipe][2:], (fused, apart)
    fatal = any(
        mismatch.is_fatal_in(version)
        for mismatch in compare_with_config(local_summary(checkpoints / recipe), drafts=False)
    )
    assert fatal == (not TABLE[recipe][3]), "what does not load even unfused is refused"
    fusion = decide_fusion(glm(version), read_experts(Checkpoint.local(checkpoints / recipe)))
    if not fatal:
        assert bool(fusion.required_flag) == (not TABLE[recipe][2]), "what does not load fused is told not to fuse"


def glm(version: str) -> Plan:
    """A plan of GLM-5.2 on that version."""
    return plan_of("mi355x-tp8-july" if version == "0.5.14" else "mi355x-tp8")


def test_loaded_models_have_no_unset_parameters(loaded: Mapping[tuple[str, str], Loaded]) -> None:
    for result_ in (results[name] for results in loaded.values() for name in results if name != "ordinary"):
        if result_["loaded"]:
            left = [name for name in result_["untouched"] if not name.endswith((".k_scale", ".v_scale"))]
            given_later = {"model.embed_tokens.weight", "lm_head.weight"}  # to a draft, from its target
            unused = {name for name in left if name.startswith("model.layers.3.self_attn.indexer.")}  # it takes 2's
            assert {*left} <= given_later | unused


def test_unprepared_quark_checkpoint_loads_in_sglang_but_is_rejected(
    ordinary: Path, loaded: Mapping[tuple[str, str], Loaded]
) -> None:
    assert loaded["0.5.14", "off"]["ordinary"]["loaded"] == "GlmMoeDsaForCausalLM"
    assert any(mismatch.fatal for mismatch in compare_with_config(local_summary(ordinary), drafts=False))


@pytest.mark.parametrize("version", ["0.5.18", "0.5.19", "0.5.23"])
def test_exclude_list_overrides_fusion_flag(version: str) -> None:
    """sglang's own order: the checkpoint is asked first, then whether the flag is set."""
    source = read(version, "srt/models/deepseek_v2.py")
    reasons = source.partition("def shared_experts_fusion_disable_reason")[2]
    asked, enforced = (reasons.index(word) for word in ("if quant_blocks_", "if get_exec().moe.enforce_shared_experts"))
    assert asked < enforced
