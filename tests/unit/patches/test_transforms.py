"""The `mtp-exclude` transform: the exclude list gets sglang's names for the MTP layer."""

import copy
from typing import Any

import pytest

from orchestrator.patches.transforms import TRANSFORMS, Transformed

BF16_EXPERTS = {"model.layers.78.mlp.experts.0.gate_proj.weight": "BF16"}
expand_exclude = TRANSFORMS["mtp-exclude"]
MXFP4_EXPERTS = {
    "model.layers.78.mlp.experts.0.gate_proj.weight": "U8",
    "model.layers.78.mlp.experts.0.gate_proj.weight_scale": "U8",
}


def config(*exclude: str, layers: int = 78, **more: object) -> dict[str, Any]:
    quantization = {"quant_method": "quark", "exclude": list(exclude), **more}
    return {"num_hidden_layers": layers, "quantization_config": quantization}


def added(given: dict[str, Any], transformed: Transformed) -> list[str]:
    """Return the entries that the transform appended to the exclude list."""
    before = given["quantization_config"]["exclude"]
    after = list(transformed.config["quantization_config"]["exclude"])  # type: ignore[index]
    assert after[: len(before)] == before
    return after[len(before) :]


def test_excluded_layer_names_are_mapped_to_draft_model() -> None:
    given = config("lm_head", "model.layers.78.eh_proj", "model.layers.78.mlp.shared_experts.up_proj")

    expanded = expand_exclude(given, MXFP4_EXPERTS)

    assert added(given, expanded) == ["model.eh_proj", "model.decoder.mlp.shared_experts.up_proj"]


@pytest.mark.parametrize("name", ["eh_proj", "enorm", "hnorm", "shared_head.norm"])
def test_top_level_draft_module_names_lose_the_layer(name: str) -> None:
    given = config(f"model.layers.78.{name}")

    assert added(given, expand_exclude(given, {})) == [f"model.{name}"]


def test_fused_experts_are_excluded_only_for_bf16_experts() -> None:
    """Exclude entries of single experts do not match the fused module, so the tensor types decide."""
    single, other = config("model.layers.78.mlp.experts.0.gate_proj"), config("model.layers.78.eh_proj")

    assert "model.decoder.mlp.experts" in added(single, expand_exclude(single, BF16_EXPERTS))
    assert "model.decoder.mlp.experts" in added(other, expand_exclude(other, BF16_EXPERTS))
    assert "model.decoder.mlp.experts" not in added(single, expand_exclude(single, MXFP4_EXPERTS))


def test_mtp_layer_follows_last_model_layer() -> None:
    given = config("model.layers.61.eh_proj", "model.layers.6.mlp.gate", "model.layers.610.mlp.gate", layers=61)

    assert added(given, expand_exclude(given, {})) == ["model.eh_proj"]


def test_transform_is_idempotent_and_keeps_its_input() -> None:
    given = config("model.layers.78.eh_proj", "model.layers.78.mlp.experts.0.up_proj")
    before = copy.deepcopy(given)

    once = expand_exclude(given, BF16_EXPERTS)
    twice = expand_exclude(once.config, BF16_EXPERTS)

    assert given == before
    assert twice.config is once.config


def test_layer_quantization_schemes_are_copied_to_draft_names() -> None:
    scheme = {"weight": {"dtype": "fp8_e4m3"}}
    given = config("model.layers.78.eh_proj", layer_quant_config={"model.layers.78.self_attn.*": scheme})

    expanded: Any = expand_exclude(given, {})

    schemes = expanded.config["quantization_config"]["layer_quant_config"]
    assert schemes == {"model.layers.78.self_attn.*": scheme, "model.decoder.self_attn.*": scheme}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (config("model.layers.61.self_attn.o_proj"), "no entry of `model.layers.78`"),
        ({"num_hidden_layers": 78}, "not quantized by Quark"),
        (
            {"num_hidden_layers": 78, "quantization_config": {"quant_method": "fp8", "exclude": ["model.layers.78.a"]}},
            "not quantized by Quark",
        ),
    ],
)
def test_unchanged_config_has_a_reason(given: dict[str, Any], reason: str) -> None:
    expanded = expand_exclude(given, BF16_EXPERTS)

    assert expanded.config is given
    assert reason in expanded.reason


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ("*layers.78.*", ["model.shared_head.norm", "model.eh_proj", "model.enorm", "model.hnorm", "*decoder.*"]),
        ("model.layers.78.self_attn.*", ["model.decoder.self_attn.*"]),
        ("*.layers.78.eh_proj", ["model.eh_proj", "*.decoder.eh_proj"]),
        (r"re:.*layers\.78\.self_attn", [r"re:.*decoder\.self_attn"]),
        (r"re:model\.layers\.78\..*_proj", ["model.eh_proj", r"re:model\.decoder\..*_proj"]),
        ("model.layers.78.mlp.experts.0.up_proj", ["model.decoder.mlp.experts.0.up_proj"]),
        ("*layers.7.*", []),
        ("*layers.780.*", []),
    ],
)
def test_exclude_patterns_are_translated_to_draft_names(entry: str, names: list[str]) -> None:
    given = config("model.layers.78.input_layernorm", entry)
    first = "model.decoder.input_layernorm"
    assert added(given, expand_exclude(given, {})) == [first, *names]

    scheme = {"weight": {"dtype": "fp8_e4m3"}}
    given = config(layer_quant_config={"*first*": {}, entry: scheme, "*": {}})
    expanded: Any = expand_exclude(given, {})
    schemes = expanded.config["quantization_config"]["layer_quant_config"]
    assert list(schemes) == ["*first*", entry, *names, "*"], "the first matching key wins"
    assert all(schemes[name] is scheme for name in names)
    assert expand_exclude(expanded.config, {}).config is expanded.config
