"""Test that the facts of public architectures are read from their files, each with its source."""

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from config_samples import (
    DEEPSEEK_V32,
    GLM_52,
    GPT_OSS_120B,
    INDEX,
    LLAMA_33_70B,
    PUBLIC,
    QUARK_MXFP4,
    write_config,
    write_public,
)

from orchestrator.checkpoints.describe import Description, describe
from orchestrator.checkpoints.summary import local_summary
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError, DeployError

MLA_CACHE = {"kv_cache.kv_lora_rank": 512, "kv_cache.qk_rope_head_dim": 64}
EXPECTED: dict[str, dict[str, object]] = {
    "GLM-5.2-FP8": {
        "architecture": "GlmMoeDsaForCausalLM",
        "quantization": "fp8", "context_length": 1048576, "layers": 78, "attention_heads": 64,
        "sparse_attention": True, "mtp_layer": 78, "moe.hidden_size": 6144, "moe.intermediate_size": 2048,
        "moe.routed_experts": 256, "moe.shared_experts": 1, "moe.experts_per_token": 8, **MLA_CACHE,
        "kv_cache.index_head_dim": 128, "kv_cache.index_layers": 21, "flags.reasoning-parser": "glm45",
        "flags.tool-call-parser": "glm47",
    },
    "GLM-4.7-Flash": {
        "architecture": "Glm4MoeLiteForCausalLM",
        "quantization": "bf16", "context_length": 202752, "layers": 47, "attention_heads": 20, "mtp_layer": 47,
        "moe.hidden_size": 2048, "moe.intermediate_size": 1536, "moe.routed_experts": 64, "moe.shared_experts": 1,
        "moe.experts_per_token": 4, **MLA_CACHE, "flags.reasoning-parser": "glm45", "flags.tool-call-parser": "glm47",
    },
    "DeepSeek-V3.2": {
        "architecture": "DeepseekV32ForCausalLM",
        "quantization": "fp8", "context_length": 163840, "layers": 61, "attention_heads": 128,
        "sparse_attention": True, "mtp_layer": 61, "moe.hidden_size": 7168, "moe.intermediate_size": 2048,
        "moe.routed_experts": 256, "moe.shared_experts": 1, "moe.experts_per_token": 8, **MLA_CACHE,
        "kv_cache.index_head_dim": 128, "flags.reasoning-parser": "deepseek-v3",
    },
    "Qwen3-235B-A22B": {
        "architecture": "Qwen3MoeForCausalLM",
        "quantization": "bf16", "context_length": 40960, "layers": 94, "attention_heads": 64, "kv_heads": 4,
        "moe.hidden_size": 4096, "moe.intermediate_size": 1536, "moe.routed_experts": 128, "moe.shared_experts": 0,
        "moe.experts_per_token": 8, "kv_cache.head_dim": 128, "flags.tool-call-parser": "qwen",
    },
    "gpt-oss-120b": {
        "architecture": "GptOssForCausalLM",
        "quantization": "mxfp4", "context_length": 131072, "layers": 36, "attention_heads": 64, "kv_heads": 8,
        "moe.hidden_size": 2880, "moe.intermediate_size": 2880, "moe.routed_experts": 128, "moe.shared_experts": 0,
        "moe.experts_per_token": 4, "kv_cache.head_dim": 64, "kv_cache.sliding_window": 128,
        "kv_cache.sliding_layers": 18,
        "flags.reasoning-parser": "gpt-oss", "flags.tool-call-parser": "gpt-oss",
    },
    "MiniMax-M3-MXFP8": {
        "architecture": "MiniMaxM3SparseForConditionalGeneration",
        "quantization": "mxfp8", "context_length": 1048576, "layers": 60, "attention_heads": 64, "kv_heads": 4,
        "moe.hidden_size": 6144, "moe.intermediate_size": 3072, "moe.routed_experts": 128, "moe.shared_experts": 1,
        "moe.experts_per_token": 4, "flags.reasoning-parser": "minimax-m3", "flags.tool-call-parser": "minimax-m3",
    },
    "Kimi-K2-Instruct": {
        "architecture": "DeepseekV3ForCausalLM",
        "quantization": "fp8", "context_length": 131072, "layers": 61, "attention_heads": 64,
        "moe.hidden_size": 7168, "moe.intermediate_size": 2048, "moe.routed_experts": 384, "moe.shared_experts": 1,
        "moe.experts_per_token": 8, **MLA_CACHE, "flags.tool-call-parser": "kimi_k2",
    },
    "Llama-3.3-70B-Instruct": {
        "architecture": "LlamaForCausalLM",
        "quantization": "bf16", "context_length": 131072, "layers": 80, "attention_heads": 64, "kv_heads": 8,
        "kv_cache.head_dim": 128,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the eight public checkpoints; the tests must not change it."""
    folder = tmp_path_factory.mktemp("public")
    for name in PUBLIC:
        write_public(folder / name, name)
    return folder


def describe_local(directory: Path, *overrides: str) -> Description:
    return describe(local_summary(directory), overrides)


def values(description: Description) -> dict[str, object]:
    return {key: fact.value for key, fact in description.facts.items()}


def rejection_messages(directory: Path) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        describe_local(directory)
    return [problem.message for problem in caught.value.problems_or_self()]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_checkpoint_is_described_completely(name: str, public: Path) -> None:
    description = describe_local(public / name)
    facts = values(description)
    mtp_size = facts.pop("mtp_weights_size", None)
    assert facts == {"weights_size": PUBLIC[name].weights, **EXPECTED[name]}
    assert (mtp_size is not None) == ("mtp_layer" in facts)
    assert description.missing == {}
    assert all(fact.source for fact in description.facts.values())


CODER_TEMPLATE = "{%- for tool in tools %}<function={{ tool.name }}>\n<parameter=x>{% endfor %}"


@pytest.mark.parametrize(
    ("file", "content", "parser"),
    [
        ("chat_template.jinja", CODER_TEMPLATE, "qwen3_coder"),
        ("tokenizer_config.json", json.dumps({"chat_template": CODER_TEMPLATE}), "qwen3_coder"),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "default", "template": CODER_TEMPLATE}]}),
            "qwen3_coder",
        ),
        ("chat_template.jinja", "{{ messages }}{{ tools }}", "qwen"),
        ("tokenizer_config.json", json.dumps({"chat_template": [1, None]}), "qwen"),
    ],
)
def test_chat_template_overrides_parser_of_architecture(file: str, content: str, parser: str, tmp_path: Path) -> None:
    write_public(tmp_path / "coder", "Qwen3-235B-A22B")
    (tmp_path / "coder" / file).write_text(content)
    fact = describe_local(tmp_path / "coder").facts["flags.tool-call-parser"]
    assert fact.value == parser
    assert ("chat template: `<function=`" in fact.source) == (parser == "qwen3_coder")


JSON_TEMPLATE = '<|im_start|>system<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>'


@pytest.mark.parametrize(
    ("template", "reasoning"),
    [
        (
            JSON_TEMPLATE
            + "{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}",
            "qwen3",
        ),
        (JSON_TEMPLATE + r"{{- '<|im_start|>assistant\n<think>\n' }}", "deepseek-r1"),
    ],
)
def test_qwen3_thinking_template_selects_reasoning_parser(template: str, reasoning: str, tmp_path: Path) -> None:
    """Source: the rules `qwen3` and `deepseek_r1_force` of sglang 0.5.21 (srt/parser/template_detection.py)."""
    write_public(tmp_path / "qwen", "Qwen3-235B-A22B")
    (tmp_path / "qwen/chat_template.jinja").write_text(template)
    facts = values(describe_local(tmp_path / "qwen"))
    assert (facts["flags.reasoning-parser"], facts["flags.tool-call-parser"]) == (reasoning, "qwen")


XML_TEMPLATE = "<|im_start|>system{{ tools }}<tool_call><function=f><parameter=p></parameter></function></tool_call>"


@pytest.mark.parametrize(
    ("template", "reasoning", "tools"),
    [
        (
            XML_TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}",
            "qwen3",
            "",
        ),
        (XML_TEMPLATE + r"{{- '<|im_start|>assistant\n<think>\n' }}", "deepseek-r1", ""),
        (
            XML_TEMPLATE + "{% if not enable_thinking is defined %}{% set enable_thinking = false %}{% endif %}",
            "mimo",
            "mimo",
        ),
        (
            XML_TEMPLATE + "{% set enable_thinking = enable_thinking if enable_thinking is defined else True %}"
            "{{ truncate_history_thinking }}",
            "nemotron_3",
            "",
        ),
        (XML_TEMPLATE + "{{ reasoning_effort }} Reasoning: <think>", "step3p5", "step3p5"),
    ],
)
def test_template_selects_tool_and_reasoning_parsers_independently(
    template: str, reasoning: str, tools: str, tmp_path: Path
) -> None:
    """One matching rule once selected both, so a thinking model with `<function=` had no reasoning parser.

    Source: sglang 0.5.21 (srt/parser/template_detection.py).
    """
    write_public(tmp_path / "qwen", "Qwen3-235B-A22B")
    (tmp_path / "qwen/chat_template.jinja").write_text(template)
    facts = values(describe_local(tmp_path / "qwen"))
    assert (facts["flags.reasoning-parser"], facts["flags.tool-call-parser"]) == (reasoning, tools or "qwen3_coder")


def test_template_without_thinking_or_tools_has_no_parser(tmp_path: Path) -> None:
    write_public(tmp_path / "plain", "GLM-4.7-Flash")
    (tmp_path / "plain/chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    description = describe_local(tmp_path / "plain")
    assert not {key for key in description.facts if key.startswith("flags.")}
    assert (
        "no default `reasoning-parser` is known; if this model reasons: `--set flags.reasoning-parser=NAME`"
        in description.notes
    )
    (tmp_path / "plain/chat_template.jinja").write_text("<think></think>{{ tools }}")
    assert values(describe_local(tmp_path / "plain"))["flags.reasoning-parser"] == "glm45"


def test_shared_expert_width_counts_as_one_shared_expert(tmp_path: Path) -> None:
    write_public(tmp_path / "next", "Qwen3-235B-A22B")
    config = json.loads((tmp_path / "next/config.json").read_text())
    (tmp_path / "next/config.json").write_text(json.dumps({**config, "shared_expert_intermediate_size": 512}))
    fact = describe_local(tmp_path / "next").facts["moe.shared_experts"]
    assert (fact.value, fact.source) == (1, "config.json: shared_expert_intermediate_size")


def test_unstaged_checkpoint_is_described_from_config_and_index(tmp_path: Path) -> None:
    complete = write_public(tmp_path / "whole", "GLM-5.2-FP8")
    (tmp_path / "early").mkdir()
    for name in ("config.json", INDEX):
        (tmp_path / "early" / name).write_text((complete / name).read_text())
    index = json.loads((complete / INDEX).read_text())
    index["metadata"] = {"total_size": 755_600_000_000}
    (tmp_path / "early" / INDEX).write_text(json.dumps(index))
    description = describe(local_summary(tmp_path / "early", config_only=True), ())
    expected = {"weights_size": 755_600_000_000, **EXPECTED["GLM-5.2-FP8"]}
    assert values(description) == expected
    assert "no file with weights is present: only the config and the index were read" in description.notes
    with pytest.raises(CheckpointError):  # serving requires the files
        local_summary(tmp_path / "early")

    (tmp_path / "early" / INDEX).write_text((complete / INDEX).read_text())  # has no `total_size`
    early = local_summary(tmp_path / "early", config_only=True)
    problem = describe(early, ()).missing["weights_size"]
    assert f"{INDEX} has no `metadata.total_size`" in problem.message
    assert problem.hint == "`--set weights_size=BYTES`"
    assert "no file with weights is present" in describe(early, ["weights_size"]).notes[0]


def test_each_fact_names_its_source_key(public: Path) -> None:
    facts = describe_local(public / "GLM-5.2-FP8").facts
    assert facts["layers"].source == "config.json: num_hidden_layers"
    assert facts["sparse_attention"].source == "config.json: index_topk"
    assert facts["weights_size"].source == f"bytes of 4 files that {INDEX} names"
    assert facts["flags.tool-call-parser"].source == "sglang cookbook GLM-5.2.mdx"
    llama = describe_local(public / "Llama-3.3-70B-Instruct").facts
    assert llama["kv_cache.head_dim"].source == "config.json: hidden_size / num_attention_heads"


def test_mtp_layer_size_is_counted_separately(public: Path) -> None:
    rows = 576 + 128 + 256  # latent, indexer and gate; plus one norm
    assert values(describe_local(public / "GLM-5.2-FP8"))["mtp_weights_size"] == (rows + 1) * 6144 * 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MiniMax-M3-MXFP8", "layers that config.json does not describe: no `sparse_attention_freq`"),
        ("MiniMax-M3-MXFP8", "the checkpoint has no tensor of the"),
        ("Kimi-K2-Instruct", "names code of the checkpoint"),
        ("Kimi-K2-Instruct", "no default `reasoning-parser`"),
    ],
)
def test_notes_name_everything_omitted(name: str, words: str, public: Path) -> None:
    assert any(words in note for note in describe_local(public / name).notes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"quantization_config": QUARK_MXFP4}, "quark-mxfp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"quant_algo": "FP8"}}, "modelopt-fp8"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"dtype": "float16"}, "fp16"),
    ],
    ids=str,
)
def test_quantization_name_matches_shipped_model_files(change: dict[str, object], word: str, tmp_path: Path) -> None:
    assert values(describe_local(write_config(tmp_path, {**GLM_52, **change})))["quantization"] == word


def test_modelopt_file_supplies_missing_quantization(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {key: value for key, value in GLM_52.items() if key != "dtype"})
    assert "quantization" in describe_local(folder).missing
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    fact = describe_local(folder).facts["quantization"]
    assert (fact.value, fact.source) == ("nvfp4", "hf_quant_config.json: quantization.quant_algo")


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"type": "linear", "factor": 4.0}, 4 * 131072),
        ({"rope_type": "llama3", "factor": 8.0}, 131072),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}, 131072),
        (None, 131072),
    ],
)
def test_context_length_matches_sglang(scaling: object, context: int, tmp_path: Path) -> None:
    """Source: `get_context_length` in srt/utils/hf_transformers/common.py, identical in sglang 0.5.14 and 0.5.23."""
    folder = write_config(tmp_path, {**LLAMA_33_70B, "rope_scaling": scaling})
    assert values(describe_local(folder))["context_length"] == context


@pytest.mark.parametrize(
    ("key", "removed"),
    [
        ("layers", ("num_hidden_layers",)),
        ("attention_heads", ("num_attention_heads", "head_dim")),
        ("context_length", ("max_position_embeddings",)),
        ("moe.experts_per_token", ("num_experts_per_tok", "num_experts_per_token")),
        ("moe.intermediate_size", ("moe_intermediate_size",)),
        ("kv_cache.kv_lora_rank", ("kv_lora_rank",)),
        ("kv_cache.index_head_dim", ("index_head_dim",)),
        ("architecture", ("architectures",)),
        ("quantization", ("dtype",)),
        ("kv_cache", ("architectures",)),
    ],
)
def test_missing_fact_hints_at_its_key(key: str, removed: tuple[str, ...], tmp_path: Path) -> None:
    config = {name: value for name, value in GLM_52.items() if name not in removed}
    folder = write_config(tmp_path, config, shape=GLM_52)
    missing = describe_local(folder).missing
    assert f"--set {key}" in missing[key].hint
    assert key not in describe_local(folder, key).missing


@pytest.mark.parametrize("removed", ["sliding_window", "layer_types"])
def test_missing_sliding_window_fields_are_requested(removed: str, tmp_path: Path) -> None:
    missing = describe_local(write_public(tmp_path, "gpt-oss-120b", **{removed: None})).missing
    key = {"layer_types": "sliding_layers"}.get(removed, removed)
    assert [*missing] == [f"kv_cache.{key}"]
    assert missing[f"kv_cache.{key}"].hint == f"`--set kv_cache.{key}=N`"
    assert removed in missing[f"kv_cache.{key}"].message


def test_unknown_architecture_suggests_similar_name(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {**LLAMA_33_70B, "architectures": ["LamaForCausalLM"]})
    problem = describe_local(folder).missing["kv_cache"]
    assert "unknown architecture `LamaForCausalLM`" in problem.message
    assert "most similar known name is `LlamaForCausalLM`" in problem.message
    assert "--set kv_cache.head_dim=N" in problem.hint
    nameless = write_config(tmp_path, {**LLAMA_33_70B, "architectures": []})
    assert "names no architecture" in describe_local(nameless).missing["kv_cache"].message


def test_text_config_is_read_without_inheriting_its_parsers(tmp_path: Path) -> None:
    """The text model of Kimi-K2.5 is `kimi_k2`, but the recipe for its parsers covers only Kimi-K2."""
    text = {key: value for key, value in PUBLIC["Kimi-K2-Instruct"].config.items() if key != "architectures"}
    whole = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    facts = values(describe_local(write_config(tmp_path, whole, prefix="language_model.model.")))
    assert (facts["layers"], facts["quantization"], facts["kv_cache.kv_lora_rank"]) == (61, "fp8", 512)
    assert not any(key.startswith("flags") for key in facts)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (LLAMA_33_70B, {"num_key_value_heads": 4}, "has 1024 rows, `num_key_value_heads` x `head_dim` is 512"),
        (LLAMA_33_70B, {"num_key_value_heads": 7}, "`num_key_value_heads` 7 does not divide `num_attention_heads` 64"),
        (LLAMA_33_70B, {"num_hidden_layers": 81}, "`num_hidden_layers` is 81, but layer 80 has no tensor"),
        (LLAMA_33_70B, {"num_hidden_layers": 79}, "`num_hidden_layers` is 79, but layer 79 has tensors"),
        (LLAMA_33_70B, {"num_attention_heads": 0}, "`num_attention_heads` is 0"),
        (GLM_52, {"num_nextn_predict_layers": 0}, "`num_hidden_layers` is 78, but layer 78 has tensors"),
        (GLM_52, {"kv_lora_rank": 256}, "has 576 rows, `kv_lora_rank` + `qk_rope_head_dim` is 320"),
        (GLM_52, {"index_head_dim": 64}, "has 128 rows, `index_head_dim` is 64"),
        (GLM_52, {"n_routed_experts": 128}, "has 256 rows, `n_routed_experts` is 128"),
        (GPT_OSS_120B, {"layer_types": ["sliding_attention"] * 35}, "is 36, but `layer_types` has 35 entries"),
        (GPT_OSS_120B, {"num_key_value_heads": 4}, "has 512 rows, `num_key_value_heads` x `head_dim` is 256"),
        (GLM_52, {"num_experts_per_tok": 300}, "`num_experts_per_tok` 300 is more than `n_routed_experts` 256"),
    ],
    ids=lambda value: "" if isinstance(value, dict) and len(value) > 1 else str(value),
)
def test_config_contradicting_tensors_is_rejected(
    config: dict[str, object], change: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = write_config(tmp_path, {**config, **change}, shape=config)
    assert any(message in problem for problem in rejection_messages(folder)), rejection_messages(folder)


SECOND = "model-00002-of-00004.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no `config.json` found"),
        (lambda folder: (folder / "config.json").write_text('{"a":'), "`config.json` is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "`config.json` is not JSON"),
        (lambda folder: (folder / INDEX).unlink(), "no weights found: neither"),
        (lambda folder: (folder / INDEX).write_text("{}"), f"cannot read `{INDEX}`"),
        (lambda folder: (folder / SECOND).unlink(), f"`{SECOND}` is missing"),
        (lambda folder: os.truncate(folder / SECOND, 9_000), "is truncated"),
        (
            lambda folder: (folder / SECOND).write_text("version https://git-lfs"),
            "is a git-lfs pointer",
        ),
    ],
)
def test_incomplete_checkpoint_is_rejected(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path, LLAMA_33_70B)
    damage(folder)
    assert any(message in problem for problem in rejection_messages(folder)), rejection_messages(folder)


def test_missing_directory_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no directory found"):
        local_summary(tmp_path / "removed")


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    folder = write_config(tmp_path, LLAMA_33_70B, shards=1)
    (folder / INDEX).unlink()
    (folder / "model-00001-of-00001.safetensors").rename(folder / "model.safetensors")
    facts = describe_local(folder).facts
    assert (facts["layers"].value, facts["weights_size"].source) == (80, "bytes of one file")


def test_random_config_values_never_crash(tmp_path: Path) -> None:
    rng = random.Random(20)
    folder = write_config(tmp_path, DEEPSEEK_V32)
    malformed = [None, True, -1, 0, 1 << 70, 1e308, "x", "\x1b[2J", [], {}, [None], {"factor": "x"}, {"factor": 1e308}]
    for _ in range(60):
        config = dict(DEEPSEEK_V32)
        for key in rng.sample(sorted(config), 3):
            config[key] = rng.choice(malformed)
        (folder / "config.json").write_text(json.dumps(config))
        with suppress(DeployError):
            describe_local(folder)
