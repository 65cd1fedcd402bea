"""Test the forecast of Quark's output from headers, against digests of real Quark output."""

import json
from pathlib import Path
from typing import Any

import pytest
import quark_samples
from quark_samples import REAL, RECIPES, Header, Tiny, facts_digest, size_of, write_tensors, write_tiny

from orchestrator.checkpoints.quantize.forecast import Forecast, forecast
from orchestrator.checkpoints.quantize.recipe import Recipe, load_recipe
from orchestrator.checkpoints.quantize.source import Source, read_source
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import CheckpointError, CheckpointMismatchError, UsageError

SHIPPED = Catalog.shipped()
AMD = "glm-5.2-amd"


def recipe_of(sample: str) -> Recipe:
    rules = RECIPES[sample]
    return Recipe(
        description="a sample",
        source="quark_samples",
        model_types=["glm_moe_dsa"],
        scheme="mxfp4",
        exclude=list(rules.exclude),
        layers={rules.fp8: "ptpc_fp8"} if rules.fp8 else {},
    )


def bf16_source(folder: Path, tiny: Tiny | None = None) -> Source:
    tiny = tiny or Tiny()
    return read_source(write_tiny(folder, tiny.config(), tiny.header()))


def header_of(forecast_: Forecast) -> Header:
    return {
        name: (tensor.dtype, tensor.shape) for tensors in forecast_.shards.values() for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("sample", [name for name in RECIPES if name != "attnfp8"])
def test_forecast_matches_real_quark_output(sample: str, tmp_path: Path) -> None:
    result = forecast(bf16_source(tmp_path / "tiny"), recipe_of(sample))
    config: dict[str, Any] = dict(Tiny().quantized(sample)[0])
    config["quantization_config"] = {**config["quantization_config"], "exclude": list(result.exclude)}
    assert facts_digest(config, header_of(result)) == REAL[sample]
    assert result.size == sum(map(size_of, header_of(result).values()))


def test_recipe_that_sglang_cannot_load_is_rejected(tmp_path: Path) -> None:
    """The first recipe leaves FP8 row scales in latent attention; the second source combines all experts."""
    source = bf16_source(tmp_path / "tiny")
    exclude = [*RECIPES["amd52"].exclude, "*q_a_proj"]
    partial = Recipe(description="d", source="s", model_types=["glm_moe_dsa"], scheme="mxfp4", exclude=exclude)
    partial = partial.model_copy(update={"exclude": [pattern for pattern in exclude if pattern != "*self_attn*"]})
    with pytest.raises(CheckpointMismatchError, match="cannot load the output of this recipe"):
        forecast(source, partial)
    header = {name: kind for name, kind in Tiny().header().items() if ".mlp.experts." not in name}
    header["model.layers.1.mlp.experts.gate_up_proj"] = ("BF16", (8, 256, 256))
    combined = read_source(write_tiny(tmp_path / "combined", Tiny().config(), header))
    with pytest.raises(CheckpointMismatchError) as caught:
        forecast(combined, load_recipe(AMD, SHIPPED))
    assert "all routed experts combined" in caught.value.problems[0].message


@pytest.mark.slow
def test_glm_52_amd_recipe_has_expected_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is 437,987,305,472: 78 layers and the MTP layer, 256 experts, 21 layers with an indexer.

    amd/GLM-5.2-MXFP4 has 438,033,728,823 bytes with headers and other files.
    """
    real = {"HIDDEN": 6144, "INNER": 12288, "MOE": 2048, "Q_RANK": 2048, "KV_RANK": 512, "NOPE": 192, "VALUE": 256,
            "ROPE": 64, "HEADS": 64, "INDEX_DIM": 128, "VOCABULARY": 154_880}  # fmt: skip
    for name, value in real.items():
        monkeypatch.setattr(quark_samples, name, value)
    tiny = Tiny(layers=78, dense=3, experts=256)
    header = _with_indexer_of_32_heads(tiny.header())
    source = read_source(write_tiny(tmp_path / "glm", {**tiny.config(), "index_n_heads": 32}, header))
    assert source.size == pytest.approx(1_506.7e9, rel=1e-3)
    assert forecast(source, load_recipe(AMD, SHIPPED)).size == 437_987_305_472


def _with_indexer_of_32_heads(header: Header) -> Header:
    """Return the header with 32 indexer heads and F32 router biases, as GLM-5.2 has."""
    changed = {}
    for name, (dtype, shape) in header.items():
        rows = {"wq_b": 32 * 128, "weights_proj": 32}.get(name.split(".")[-2], 0) if ".indexer." in name else 0
        changed[name] = ("F32" if name.endswith("correction_bias") else dtype, (rows, *shape[1:]) if rows else shape)
    return changed


def test_recipe_for_other_model_type_is_rejected(tmp_path: Path) -> None:
    source = bf16_source(tmp_path / "tiny")
    other = load_recipe(AMD, SHIPPED).model_copy(update={"model_types": ["llama"]})
    with pytest.raises(UsageError, match="the recipe is for `llama`, this model is `glm_moe_dsa`"):
        forecast(source, other)


def test_columns_not_divisible_by_group_size_are_rejected(tmp_path: Path) -> None:
    header = {**Tiny().header(), "model.layers.2.mlp.experts.3.up_proj.weight": ("BF16", (128, 250))}
    source = read_source(write_tiny(tmp_path / "odd", Tiny().config(), header))
    with pytest.raises(UsageError, match=r"experts.3.up_proj.weight` has 250 columns"):
        forecast(source, load_recipe(AMD, SHIPPED))


@pytest.mark.parametrize("quantized_in", ["config", "tensors"])
def test_quantized_source_is_rejected_with_hint(quantized_in: str, tmp_path: Path) -> None:
    config, header = Tiny().config(), Tiny().header()
    if quantized_in == "config":
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    else:
        header["model.layers.1.mlp.experts.0.up_proj.weight"] = ("F8_E4M3", (128, 256))
    with pytest.raises(UsageError) as caught:
        read_source(write_tiny(tmp_path / "fp8", config, header))
    assert "BF16 checkpoint" in caught.value.hint


def test_truncated_source_is_rejected(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "cut", Tiny().config(), Tiny().header())
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(CheckpointError):
        read_source(folder)


def test_shards_in_subdirectories_are_rejected(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "deep", Tiny().config(), Tiny().header())
    (folder / "inner").mkdir()
    write_tensors(folder / "inner" / "one.safetensors", {"lm_head.weight": ("BF16", (8, 32))})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"lm_head.weight": "inner/one.safetensors"}})
    )
    with pytest.raises((UsageError, CheckpointError)):
        read_source(folder)
