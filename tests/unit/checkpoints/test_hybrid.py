"""Test that the KV cache read from config.json equals the values in the shipped model files."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from pool_configs import (
    CODER,
    FLASH,
    GLM,
    KIMI,
    LINEAR,
    M3,
    NEMOTRON,
    NEXT,
    OSS,
    QWEN,
    V4,
    V4_PRO,
    V41,
    Config,
    described,
)

from orchestrator.checkpoints.describe import Description
from orchestrator.core.paths import data_root
from orchestrator.profiles.schema import KvCacheSection

MODELS = data_root() / "profiles" / "models"
SHIPPED: Mapping[str, Config] = {  # file name or its prefix → config
    "glm-5.2": GLM,
    "glm-5.3-flash": FLASH,
    "glm-5.3": GLM,
    "qwen3.5-397b": QWEN,
    "qwen3-coder": CODER,
    "deepseek-v4-flash": V4,
    "deepseek-v4-pro": V4_PRO,
    "deepseek-v4.1": V41,
    "kimi-k2.7": {**KIMI, "architectures": ["KimiK25ForConditionalGeneration"]},
    "minimax-m3": M3,
    "gpt-oss": OSS,
}
GENERATED = {"tiny"}  # by images/tiny_model.py


def section(description: Description) -> KvCacheSection:
    values = {
        key.removeprefix("kv_cache."): fact.value for key, fact in description.facts.items() if "kv_cache." in key
    }
    return KvCacheSection.model_validate(values)


@pytest.mark.parametrize("name", sorted({path.stem for path in MODELS.glob("*.yaml")} - GENERATED))
def test_kv_cache_section_matches_shipped_model_files(name: str, tmp_path: Path) -> None:
    config = next(config for start, config in SHIPPED.items() if name.startswith(start))
    expected = KvCacheSection.model_validate(yaml.safe_load((MODELS / f"{name}.yaml").read_text())["kv_cache"])
    drafts = ["mtp.fc.weight"] if config is QWEN else []
    description = described(tmp_path, config, *drafts)
    assert section(description) == expected
    assert not [key for key in description.missing if "kv_cache" in key]
    model = yaml.safe_load((MODELS / f"{name}.yaml").read_text())
    if drafts:
        assert description.facts["mtp_layer"].value == model["mtp_layer"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NEXT, "heads 256, 36 states of 16 + 32 heads of 128"),
        (LINEAR, "latent 512 + 64, 20 states of 32 + 32 heads of 128"),
        (NEMOTRON, "heads 128 in 6 layers, 23 states of 8 + 64 heads of 64 x 128"),
    ],
    ids=["qwen3-next", "kimi-linear", "nemotron-h"],
)
def test_linear_attention_and_mamba_states_are_read(config: Config, expected: str, tmp_path: Path) -> None:
    cache = section(described(tmp_path, config))
    width = (
        f"latent {cache.kv_lora_rank} + {cache.qk_rope_head_dim}" if cache.kv_lora_rank else f"heads {cache.head_dim}"
    )
    layers = f" in {cache.attention_layers} layers" if cache.attention_layers else ""
    state = cache.linear
    assert state is not None
    size = f"{state.head_dim} x {state.key_dim}" if state.key_dim else f"{state.head_dim}"
    summary = f"{width}{layers}, {state.layers} states of {state.key_heads} + {state.value_heads} heads of {size}"
    assert summary == expected


def test_each_fact_has_its_source(tmp_path: Path) -> None:
    facts = described(tmp_path, NEXT, "mtp.fc.weight").facts
    assert facts["kv_cache.linear"].source == "config.json: full_attention_interval, linear_*"
    assert facts["kv_cache.counts_draft"].value is False
    assert facts["kv_cache.counts_draft"].source.endswith("(sglang 0.5.23, spec_aux_hidden_state.py:172)")
    assert facts["mtp_layer"].value == 48
    assert "kv_cache.counts_draft" not in described(tmp_path, NEXT).facts, "the checkpoint has no draft layer"
    assert "kv_cache.counts_draft" not in described(tmp_path, GLM).facts, "the config names its draft layer"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (NEXT, "linear_num_value_heads"),
        (LINEAR, "linear_attn_config"),
        (NEMOTRON, "hybrid_override_pattern"),
        (NEMOTRON, "ssm_state_size"),
        (V4, "compress_ratios"),
        (V41, "compress_ratios"),
        (M3, "sparse_attention_config"),
    ],
)
@pytest.mark.parametrize("value", [None, "many", -1, [], {}], ids=repr)
def test_config_without_layer_sizes_has_no_kv_cache(config: Config, key: str, value: object, tmp_path: Path) -> None:
    description = described(tmp_path, {**config, key: value})
    assert not [fact for fact in description.facts if "kv_cache" in fact]
    assert f"`{config['architectures'][0]}` has layers that config.json does not describe: no `" in "".join(
        description.notes
    )


def test_shared_experts_are_read_from_either_key(tmp_path: Path) -> None:
    """Kimi-Linear and Kimi-K3 have `num_shared_experts`, DeepSeek has `n_shared_experts`."""
    assert described(tmp_path, LINEAR).facts["moe.shared_experts"].value == 1
