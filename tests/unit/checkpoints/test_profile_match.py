"""Test that the model facts of a profile match the checkpoint's config.json."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint
from plan_samples import model, plan_of

from orchestrator.checkpoints.profile_match import require_profile_match
from orchestrator.checkpoints.verify import verify_checkpoint
from orchestrator.core.errors import CheckpointMismatchError
from orchestrator.plan.plan import Model

# The configuration that zai-org publishes for GLM-5 (transformers, `glm_moe_dsa`), with the profile's values.
GLM = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "max_position_embeddings": 1048576,
    "hidden_size": 6144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "index_topk": 2048,
    "quantization_config": {"quant_method": "quark"},
}


@pytest.fixture(scope="module")
def glm() -> Model:
    return plan_of("mi355x-tp8").model


def mismatch_messages(folder: Path, model_: Model, **config: object) -> list[str]:
    (folder / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value != "gone"}))
    with pytest.raises(CheckpointMismatchError) as caught:
        require_profile_match(folder, model_)
    assert {problem.location for problem in caught.value.problems} == {f"{folder}/config.json"}
    return [problem.message for problem in caught.value.problems]


def matches(folder: Path, model_: Model, **config: object) -> bool:
    (folder / "config.json").write_text(json.dumps(config))
    require_profile_match(folder, model_)
    return True


def test_matching_facts_are_not_reported(tmp_path: Path, glm: Model) -> None:
    assert matches(tmp_path, glm, **GLM)
    assert matches(tmp_path, glm, text_config=GLM)
    assert matches(tmp_path, glm, model_type="small")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            "`model.architecture` is `GlmMoeDsaForCausalLM`, the checkpoint's `architectures` is `LlamaForCausalLM`",
        ),
        ({"num_hidden_layers": 61}, "`model.layers` is `78`, the checkpoint's `num_hidden_layers` is `61`"),
        (
            {"num_attention_heads": 48},
            "`model.attention_heads` is `64`, the checkpoint's `num_attention_heads` is `48`",
        ),
        (
            {"max_position_embeddings": 202752},
            "`model.context_length` is `1048576`, the checkpoint's `max_position_embeddings` is `202752`",
        ),
        (
            {"n_routed_experts": 128},
            "`model.moe.routed_experts` is `256`, the checkpoint's `n_routed_experts` is `128`",
        ),
        (
            {"n_routed_experts": "gone", "num_experts": 128},
            "`model.moe.routed_experts` is `256`, the checkpoint's `num_experts` is `128`",
        ),
        (
            {"num_nextn_predict_layers": 0},
            "`model.mtp_layer` is `78`, the checkpoint's `num_nextn_predict_layers` is `0`",
        ),
        ({"index_topk": None}, "`model.sparse_attention` is true, the checkpoint's `index_topk` is missing"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "`model.quantization` is `quark-mxfp4`, the checkpoint's `quantization_config.quant_method` is `fp8`",
        ),
    ],
    ids=str,
)
def test_each_mismatch_names_key_and_both_values(
    change: dict[str, object], message: str, tmp_path: Path, glm: Model
) -> None:
    assert message in mismatch_messages(tmp_path, glm, **{**GLM, **change})


def test_quantization_mismatch_with_plain_weights_is_reported(tmp_path: Path, glm: Model) -> None:
    (message,) = mismatch_messages(tmp_path, replace(glm, quantization="bf16"), **GLM)
    assert message.startswith("`model.quantization` is `bf16`")
    modelopt = {**GLM, "quantization_config": {"quant_method": "modelopt"}}
    assert matches(tmp_path, replace(glm, quantization="nvfp4"), **modelopt)


def test_context_with_rope_scaling_is_not_checked(tmp_path: Path, glm: Model) -> None:
    scaled = {**GLM, "max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 40}}
    assert matches(tmp_path, glm, **scaled)


def test_receipt_does_not_hide_changed_profile_fact(tmp_path: Path) -> None:
    """The receipt of `stage` does not cover a later `--set model.layers=99`."""
    folder = write_checkpoint(tmp_path / "small")
    (folder / "config.json").write_text('{"num_hidden_layers": 3}')
    small = model(str(folder))
    verify_checkpoint(folder, small, speculative=False)
    assert verify_checkpoint(folder, small, speculative=False).from_receipt
    with pytest.raises(CheckpointMismatchError) as caught:
        verify_checkpoint(folder, replace(small, layers=99), speculative=False)
    assert "`model.layers` is `99`" in caught.value.problems[0].message
    assert "deploy show" in caught.value.problems[0].hint
