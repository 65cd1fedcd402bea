"""Test the comparison of a checkpoint's headers with its config: 14 checkpoints of Quark's kind, and other methods."""

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_samples import model
from quark_samples import (
    CHECKPOINTS,
    REAL,
    RECIPES,
    Header,
    Tiny,
    facts_digest,
    promised,
    size_of,
    without,
    write_tensors,
    write_tiny,
)
from typer.testing import CliRunner

from orchestrator.checkpoints.download import stage_checkpoint
from orchestrator.checkpoints.hub import Hub
from orchestrator.checkpoints.mismatch import Mismatch
from orchestrator.checkpoints.receipt import read_receipt
from orchestrator.checkpoints.summary import local_summary
from orchestrator.checkpoints.verify import VerifyOptions, compare_with_config, verify_checkpoint
from orchestrator.checkpoints.view import view_checkpoint
from orchestrator.cli.main import app
from orchestrator.core.errors import CheckpointMismatchError
from orchestrator.plan.plan import Model

NOT_FUSIBLE = "shared experts are stored as {}, routed ones as U8 (layer 1): they cannot be fused"
EXPERT = "model.layers.1.mlp.experts.0.gate_proj.weight"


def compare(folder: Path, config: dict[str, Any], header: Header, *, drafts: bool = True) -> tuple[Mismatch, ...]:
    return compare_with_config(local_summary(write_tiny(folder, config, header)), drafts=drafts)


@pytest.mark.parametrize("recipe", RECIPES)
def test_samples_match_real_quark_output(recipe: str) -> None:
    assert facts_digest(*Tiny().quantized(recipe)) == REAL[recipe]


@pytest.mark.parametrize(
    ("name", "rejecting_versions", "messages"),
    [
        ("default", "", ()),
        ("amd52", "", ()),
        ("glm5", "", (NOT_FUSIBLE.format("BF16"),)),
        ("wafer", "", (NOT_FUSIBLE.format("BF16"),)),
        ("wafer-mx", "", (NOT_FUSIBLE.format("BF16"),)),
        ("mtpfp8", "0.5.14 0.5.16", ("`layer_quant_config` names the MTP layer as `*layers.4.*`",)),
        (
            "sharedfp8",
            "0.5.14 0.5.16",
            ("9 tensors are of shared experts in Quark's FP8, which", NOT_FUSIBLE.format("F8_E4M3")),
        ),
        ("attnfp8", "0.5.14 0.5.16", ("5 tensors are stored as FP8 with a one-dimensional scale",)),
        ("bf16, not quantized", "", ()),
        ("amd52, of 78 layers", "", ()),
        (
            "default, its model not prepared",
            "0.5.14 0.5.16",
            ("96 tensors are stored as BF16, but MXFP4 in `quantization_config`: `model.layers.4.mlp.experts.",),
        ),
        (
            "amd52, not prepared, experts in one tensor",
            "0.5.14 0.5.16",
            ("6 tensors are of all routed experts combined, which sglang skips without an error: `model.l",),
        ),
        (
            "amd52, without one expert of layer 2",
            "0.5.14 0.5.16",
            ("layer 2 lacks some of 8 experts of `n_routed_experts`: found 7 of `down_proj`, 7",),
        ),
        (
            "amd52, without the MTP layer's eh_proj",
            "0.5.14 0.5.16",
            ("the MTP layer lacks 1 modules: `model.layers.4.eh_proj`",),
        ),
    ],
)
def test_sample_checkpoints_yield_expected_mismatches(
    name: str, rejecting_versions: str, messages: tuple[str, ...], tmp_path: Path
) -> None:
    mismatches = compare(tmp_path / "tiny", *CHECKPOINTS[name]())
    rejecting = [
        version for version in ("0.5.14", "0.5.16") if any(mismatch.is_fatal_in(version) for mismatch in mismatches)
    ]
    assert " ".join(rejecting) == rejecting_versions
    texts = [mismatch.message for mismatch in mismatches]
    assert all(any(message.startswith(start) for message in texts) for start in messages), texts
    assert bool(texts) == bool(messages), texts


def test_exclude_count_of_78_layers_matches_quark() -> None:
    assert len(CHECKPOINTS) == 14
    config, _ = CHECKPOINTS["amd52, of 78 layers"]()
    assert len(config["quantization_config"]["exclude"]) == 575  # as in Quark's list for a real model


@pytest.mark.parametrize(
    ("recipe", "message", "fatal", "not_fatal"),
    [
        ("sharedfp8", "9 tensors are of shared experts in Quark's FP8, which", "0.5.16", "0.5.17"),
        ("attnfp8", "5 tensors are stored as FP8 with a one-dimensional scale", "0.5.16", "0.5.18"),
        ("mtpfp8", "`layer_quant_config` names the MTP layer as `*layers.4.*`", "0.5.16", "0.5.14"),
    ],
)
def test_mismatch_is_fatal_only_in_affected_versions(
    recipe: str, message: str, fatal: str, not_fatal: str, tmp_path: Path
) -> None:
    mismatches = compare(tmp_path / recipe, *Tiny().quantized(recipe))
    mismatch = next(item for item in mismatches if item.message.startswith(message))
    assert (NOT_FUSIBLE.format("F8_E4M3") in [mismatch.message for mismatch in mismatches]) == (recipe == "sharedfp8")
    assert mismatch.is_fatal_in(fatal)
    assert not mismatch.is_fatal_in(not_fatal)


def changed(name: str, dtype: str, *shape: int) -> Callable[[Header], Header]:
    return lambda header: {**header, name: (dtype, shape)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(".layers.2.mlp.experts."), "layer 2 lacks some of 8 experts of `n_routed_experts`: found none"),
        (
            without(".layers.4.mlp.experts.7."),
            "the MTP layer lacks 3 modules: `model.layers.4.mlp.experts.7.down_proj`, ",
        ),
        (without(f"{EXPERT}_scale"), f"1 tensor is stored as MXFP4 without `weight_scale`: `{EXPERT}`"),
        (
            changed(f"{EXPERT}_scale", "U8", 128, 4),
            f"1 tensor is stored as MXFP4 with scales of the wrong shape: `{EXPERT}`",
        ),
        (changed(f"{EXPERT}_scale", "I32", 128, 8), f"1 tensor is stored as MXFP4 with scales of I32: `{EXPERT}`"),
        (
            changed("model.layers.2.self_attn.o_proj.weight", "U8", 256, 128),
            "1 tensor is stored as U8, but unquantized in `quantization_config`: `model.layers.2.self_attn.",
        ),
        (
            changed("model.layers.4.self_attn.kv_a_proj_with_mqa.weight", "BF16", 90, 256),
            "`model.layers.4.self_attn.kv_a_proj_with_mqa.weight` has 90 rows",
        ),
    ],
)
def test_tensors_that_sglang_would_misload_are_fatal(
    change: Callable[[Header], Header], message: str, tmp_path: Path
) -> None:
    config, header = Tiny().quantized("amd52")
    mismatches = compare(tmp_path / "tiny", config, change(header))
    assert any(mismatch.message.startswith(message) and mismatch.fatal for mismatch in mismatches), mismatches


def test_mismatch_in_unused_mtp_layer_is_not_fatal(tmp_path: Path) -> None:
    config, header = Tiny().quantized("amd52")
    mismatches = compare(tmp_path / "tiny", config, without(".layers.4.eh_proj")(header), drafts=False)
    assert [mismatch.fatal for mismatch in mismatches] == [False]
    assert (
        "speculative decoding with it is impossible"
        in compare(tmp_path / "none", config, without(".layers.4.")(header))[0].message
    )


def test_fused_modules_must_share_one_scheme(tmp_path: Path) -> None:
    config, header = Tiny().quantized("default")
    name = "model.layers.1.mlp.shared_experts.up_proj"
    config["quantization_config"]["exclude"].append(name)
    header = {**without(f"{name}.weight_scale")(header), f"{name}.weight": ("BF16", (128, 256))}
    mismatches = compare(tmp_path / "tiny", config, header)
    assert (mismatches[0].fatal, "sglang fuses them with" in mismatches[0].message) == (True, True)


def test_individually_excluded_experts_are_treated_as_quantized(tmp_path: Path) -> None:
    """sglang looks up `…mlp.experts`: an entry equals it or matches with `re:`; other patterns match nothing."""
    config, header = Tiny().quantized("default")
    bf16 = {name: kind for name, kind in Tiny().header().items() if ".layers.1.mlp.experts." in name}
    header = {**without(".layers.1.mlp.experts.")(header), **bf16}
    section = config["quantization_config"]
    single = [name.removesuffix(".weight") for name in bf16]
    for number, (entries, fatal) in enumerate(
        [
            (single, True),
            ([*single, "model.layers.1.mlp.experts"], False),
            ([r"re:model\.layers\.1\.mlp\.experts"], False),
            (["*layers.1.mlp.experts*"], True),
        ]
    ):
        quantized = {**config, "quantization_config": {**section, "exclude": [*section["exclude"], *entries]}}
        assert any(mismatch.fatal for mismatch in compare(tmp_path / str(number), quantized, header)) is fatal, entries


def quantized_as(section: dict[str, Any], *tensors: tuple[str, str, tuple[int, ...]]) -> tuple[dict[str, Any], Header]:
    """Return a Llama layer whose `down_proj` has these tensors and whose `o_proj` is not quantized."""
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "quantization_config": section}
    prefix = "model.layers.0."
    header: Header = {f"{prefix}mlp.down_proj.{leaf}": (dtype, shape) for leaf, dtype, shape in tensors}
    return config, {**header, f"{prefix}self_attn.o_proj.weight": ("BF16", (256, 256))}


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["self_attn"]}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
PACKED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["re:.*self_attn.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "tensors", "wrong_scale"),
    [
        (FP8, [("weight", "F8_E4M3", (256, 600)), ("weight_scale_inv", "F32", (2, 5))], ("F32", (2, 4))),
        (PACKED, [("weight_packed", "I32", (256, 64)), ("weight_scale", "BF16", (256, 16))], ("BF16", (256, 8))),
    ],
    ids=["fp8", "compressed-tensors"],
)
def test_other_quantization_methods_follow_sglang(
    section: dict[str, Any],
    tensors: list[tuple[str, str, tuple[int, ...]]],
    wrong_scale: tuple[str, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    assert compare(tmp_path / "right", *quantized_as(section, *tensors)) == ()
    matrix, (scale, *_) = tensors
    (mismatch,) = compare(tmp_path / "scale", *quantized_as(section, matrix, (scale, *wrong_scale)))
    assert (mismatch.fatal, "scales of" in mismatch.message) == (True, True)
    (mismatch,) = compare(tmp_path / "plain", *quantized_as(section, ("weight", "BF16", (256, 512))))
    assert (mismatch.fatal, "stored as BF16" in mismatch.message) == (True, True)
    without_exclude = {key: value for key, value in section.items() if key not in {"ignore", "modules_to_not_convert"}}
    (mismatch,) = compare(tmp_path / "without_exclude", *quantized_as(without_exclude, *tensors))
    assert "self_attn.o_proj.weight" in mismatch.message, "tensors outside the exclude list must be quantized"


def test_unknown_quantization_method_or_scheme_is_not_checked(tmp_path: Path) -> None:
    (mismatch,) = compare(tmp_path / "hqq", *quantized_as({"quant_method": "hqq"}, ("weight", "U8", (256, 256))))
    assert (mismatch.message, mismatch.fatal) == (
        "the storage of tensors is not checked: unknown quantization method `hqq`",
        False,
    )
    (mismatch,) = compare(tmp_path / "nvfp4", *quantized_as({"quant_algo": "NVFP4"}, ("weight", "U8", (256, 256))))
    assert "unknown quantization method `modelopt`" in mismatch.message
    config, header = Tiny().quantized("default")
    config["quantization_config"]["global_quant_config"]["weight"] |= {"dtype": "int3"}
    (mismatch,) = compare(tmp_path / "int3", config, header)
    assert (mismatch.fatal, "not checked, with the unknown scheme `int3 per_group`" in mismatch.message) == (
        False,
        True,
    )


def test_unknown_architecture_is_reported_but_not_rejected(tmp_path: Path) -> None:
    config, header = Tiny().quantized("default")
    mismatches = compare(tmp_path / "tiny", {**config, "architectures": ["TinyForCausalLM"]}, promised(header))
    assert [mismatch.fatal for mismatch in mismatches] == [False] * len(mismatches)
    assert "stored as BF16" in mismatches[0].message


# --- in `stage`, `up` and `inspect` -----------------------------------------------------------------------------------


SPEC = replace(model("", mtp_layer=4), layers=4, quantization="quark-mxfp4", context_length=4096, sparse_attention=True)


@pytest.fixture
def mismatched(tmp_path: Path) -> tuple[Path, Model]:
    """Return a checkpoint whose config does not match its tensors, and the model section of its profile."""
    config, header = Tiny().quantized("default")
    folder = write_tiny(tmp_path / "tiny", config, promised(header))
    return folder, replace(SPEC, checkpoint=replace(SPEC.checkpoint, path=str(folder)))


def staged(folder: Path, spec: Model, *, accept: bool) -> tuple[Mismatch, ...]:
    options = VerifyOptions(layer=4, revision=None, sizes={}, sglang="0.5.14", allow_mismatch=accept)
    hub = Hub(endpoint=None, token=None)
    return stage_checkpoint(spec, folder, options, hub=hub, progress=lambda _: None).mismatches


def test_mismatch_is_rejected_until_accepted(mismatched: tuple[Path, Model]) -> None:
    folder, spec = mismatched
    for attempt in (
        lambda: staged(folder, spec, accept=False),
        lambda: verify_checkpoint(folder, spec, speculative=True),
    ):
        with pytest.raises(
            CheckpointMismatchError, match=r"the tensors of `small` do not match its `config\.json`"
        ) as caught:
            attempt()
        assert "--allow-mismatch" in caught.value.hint
        assert read_receipt(folder) is None
    assert any(mismatch.fatal for mismatch in staged(folder, spec, accept=True))
    verified = verify_checkpoint(folder, spec, speculative=True)
    assert verified.from_receipt
    assert any(mismatch.fatal for mismatch in verified.mismatches), "accepted mismatches are reported each time"
    os.utime(folder / "model.safetensors", (1, 1))
    with pytest.raises(CheckpointMismatchError):
        verify_checkpoint(folder, spec, speculative=True)


def test_receipt_does_not_cover_another_sglang_version(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", *Tiny().quantized("attnfp8"))
    spec = replace(SPEC, checkpoint=replace(SPEC.checkpoint, path=str(folder)))
    verify_checkpoint(folder, spec, speculative=True, sglang="0.5.18")
    assert verify_checkpoint(folder, spec, speculative=True, sglang="0.5.18").from_receipt
    with pytest.raises(CheckpointMismatchError) as caught:
        verify_checkpoint(folder, spec, speculative=True, sglang="0.5.16")
    assert "use sglang 0.5.18 or newer" in caught.value.problems[0].hint


def test_weights_size_is_compared_with_profile(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", *Tiny().quantized("amd52"))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    spec = replace(SPEC, checkpoint=replace(SPEC.checkpoint, path=str(folder)))
    (mismatch,) = verify_checkpoint(folder, spec, speculative=True).mismatches
    assert mismatch.hint.startswith(f"`--set model.weights_size={size}`")
    for corrected in (replace(spec, weight_bytes=size), replace(spec, weight_bytes=int(size * 1.01))):
        assert verify_checkpoint(folder, corrected, speculative=True).mismatches == ()


def test_inspect_shows_storage_formats_and_mismatches(mismatched: tuple[Path, Model], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(write_tiny(tmp_path / "amd52", *Tiny().quantized("amd52")))])
    assert result.exit_code == 0
    assert "GlmMoeDsaForCausalLM, quark-mxfp4, 2 shards" in result.output
    assert re.search(r"mlp\.experts\.up_proj +8 BF16, 24 U8", result.output)
    with pytest.raises(CheckpointMismatchError) as caught:
        view_checkpoint(mismatched[0]).require()
    assert "but MXFP4 in" in caught.value.problems[0].message


@pytest.mark.slow
def test_verifying_282_shards_takes_seconds_and_little_memory(tmp_path: Path) -> None:
    """The counts are those of GLM-5.2 (78 layers of 256 experts, and the MTP layer), in sparse files."""
    config, header = Tiny(layers=78, dense=3, experts=256).quantized("amd52")
    folder = tmp_path / "large"
    write_tiny(folder, config, {})
    names, files = list(header), 282
    weight_map = {}
    for number in range(files):
        file = f"model-{number:05d}.safetensors"
        shard = {name: header[name] for name in names[number::files]}
        fill = (438_000_000_000 // files - sum(map(size_of, shard.values())),)
        write_tensors(folder / file, {**shard, f"model.filler.{number}": ("U8", fill)})
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    spec = replace(SPEC, layers=78, mtp_layer=78, checkpoint=replace(SPEC.checkpoint, path=str(folder)))
    begin = time.process_time()
    verified = verify_checkpoint(folder, spec, speculative=True)
    assert time.process_time() - begin < 5
    assert (verified.shards, verified.tensors > 117_000, verified.size > 437 * 10**9) == (files, True, True)
    assert len(verified.mismatches) == 1, "only the size, which the sample's profile does not have"
