"""Checkpoint architectures in sglang: KV cache layout and output parsers.

Source: `srt/configs/model_config.py` in sglang's wheels 0.5.14 to 0.5.23; line numbers are those of 0.5.16: latent
attention at 789, sparse attention at 105, sliding windows at 1908, keys and values per head for all others (:940).
The table lists architectures whose cache is read from a config.json, and unsupported architectures with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from orchestrator.engine.options import Meaning

Attention: TypeAlias = Literal["heads", "latent", "other"]
Hybrid: TypeAlias = Literal["gdn", "kda", "mamba", "compressed", "blocks"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model architecture of sglang: its attention type and the unusual keys of its config.json."""

    attention: Attention
    reason: str = ""  # for `other`: the feature whose sizes are not read
    windows: bool = False  # some layers have a sliding window, see `layer_types` in the config
    hybrid: Hybrid | None = None  # layers other than plain attention, see checkpoints/hybrid.py
    sparse: bool = False  # uses DeepSeek's sparse attention if the config has `index_topk`
    expert_size: str = "moe_intermediate_size"  # the config key with an expert's inner dimension
    separate_experts: bool = False  # loads routed experts one by one; an MTP layer, if any, follows the last layer


@dataclass(frozen=True, kw_only=True)
class ParserFlag:
    """An option that selects a parser, with the source of its value."""

    flag: str
    value: str
    source: str


_HEADS: Final = Architecture(attention="heads")
_LATENT: Final = Architecture(attention="latent", separate_experts=True)
_SPARSE: Final = Architecture(attention="latent", sparse=True, separate_experts=True)
_WINDOWS: Final = "sliding windows in some of its layers, with heads or chunks of another shape"
_GDN: Final = Architecture(attention="heads", hybrid="gdn")
_KDA: Final = Architecture(attention="latent", hybrid="kda")
_BLOCKS: Final = Architecture(attention="heads", hybrid="blocks", expert_size="intermediate_size")


def _other(reason: str) -> Architecture:
    return Architecture(attention="other", reason=reason)


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": _HEADS,
    "InternLM3ForCausalLM": _HEADS,
    "Qwen2ForCausalLM": _HEADS,
    "Qwen3ForCausalLM": _HEADS,
    "Qwen3MoeForCausalLM": _HEADS,
    "MistralForCausalLM": _HEADS,
    "Glm4ForCausalLM": _HEADS,
    "Glm4MoeForCausalLM": Architecture(attention="heads", separate_experts=True),
    "Phi3ForCausalLM": _HEADS,
    "MixtralForCausalLM": Architecture(attention="heads", expert_size="intermediate_size"),
    "MiniMaxM2ForCausalLM": Architecture(attention="heads", expert_size="intermediate_size"),
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _SPARSE,
    "DeepseekV32ForCausalLM": _SPARSE,
    "MistralLarge3ForCausalLM": Architecture(attention="latent", sparse=True),
    "Glm4MoeLiteForCausalLM": _LATENT,
    "GlmMoeDsaForCausalLM": _SPARSE,
    "KimiK25ForConditionalGeneration": _LATENT,
    "GptOssForCausalLM": Architecture(attention="heads", windows=True, expert_size="intermediate_size"),
    "Llama4ForConditionalGeneration": _other(_WINDOWS),
    "MiMoV2FlashForCausalLM": _other(_WINDOWS),
    "Step3p5ForCausalLM": _other(_WINDOWS),
    "Gemma4ForCausalLM": _other(_WINDOWS),
    "Gemma4ForConditionalGeneration": _other(_WINDOWS),
    "Qwen3NextForCausalLM": _GDN,
    "Qwen3_5ForConditionalGeneration": _GDN,
    "Qwen3_5MoeForConditionalGeneration": _GDN,
    "KimiLinearForCausalLM": _KDA,
    "KimiK3ForConditionalGeneration": _KDA,
    "Qwen4ExpForConditionalGeneration": _other("linear and sparse attention over heads, with an indexer"),
    "Glm5NextForConditionalGeneration": Architecture(
        attention="latent", hybrid="kda", sparse=True, separate_experts=True
    ),
    "NemotronHForCausalLM": Architecture(attention="heads", hybrid="mamba"),
    "DeepseekV4ForCausalLM": Architecture(attention="heads", hybrid="compressed"),
    "DeepseekV41ForCausalLM": Architecture(attention="heads", hybrid="compressed"),
    "LongcatFlashForCausalLM": _other("two attentions in each layer"),  # :982
    "MiniMaxM3SparseForCausalLM": _BLOCKS,
    "MiniMaxM3SparseForConditionalGeneration": _BLOCKS,
}

# The options that name a parser, with the ability of models that need one.
PARSERS: Final = {Meaning.REASONING_PARSER.value: "reasons", Meaning.TOOL_PARSER.value: "calls tools"}
_SPOKEN_OF: Final = dict(zip(PARSERS, ("think", "tool"), strict=True))  # words in a template that needs the parser
_COOKBOOK: Final = "sglang cookbook "


def _parsers(page: str, *, reasoning: str | None = None, tools: str | None = None) -> tuple[ParserFlag, ...]:
    values = zip(PARSERS, (reasoning, tools), strict=True)
    return tuple(ParserFlag(flag=flag, value=value, source=_COOKBOOK + page) for flag, value in values if value)


# By architecture, or by `model_type` if one architecture covers several families. Omitted are parsers that differ
# between checkpoints of one architecture: Qwen3 Instruct does not reason, DeepSeek-V3.2-Exp formats tool calls like
# V3.1, and GLM-4.7 differs from GLM-4.5 and 4.6 (GLM-4.7-Flash.mdx, "Parser names by model").
_PARSERS: Final[Mapping[str, tuple[ParserFlag, ...]]] = {
    "GlmMoeDsaForCausalLM": _parsers("GLM-5.2.mdx", reasoning="glm45", tools="glm47"),
    "Glm4MoeLiteForCausalLM": _parsers("GLM-4.7-Flash.mdx", reasoning="glm45", tools="glm47"),
    "Glm4MoeForCausalLM": _parsers("GLM-4.7.mdx", reasoning="glm45"),
    "DeepseekV32ForCausalLM": _parsers("DeepSeek-V3_2.mdx", reasoning="deepseek-v3"),
    "GptOssForCausalLM": _parsers("GPT-OSS.mdx", reasoning="gpt-oss", tools="gpt-oss"),
    "Qwen3MoeForCausalLM": _parsers("Qwen3.mdx", tools="qwen"),
    "kimi_k2": _parsers("Kimi-K2.mdx", tools="kimi_k2"),
    **dict.fromkeys(
        ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
        tuple(
            ParserFlag(flag=flag, value="minimax-m3", source="sglang 0.5.23, srt/parser/template_detection.py:880")
            for flag in PARSERS
        ),
    ),
}


# Texts that must all occur in a chat template, and the parser to use: sglang 0.5.21's rules that match only texts, in
# its order (srt/parser/template_detection.py, `REASONING_PARSER_RULES`, `TOOL_CALL_PARSER_RULES`), and the texts of two
# rules with further conditions: the hybrid Qwen3, and ChatML whose prompt opens the thinking block.
_CODER: Final = ("<function=", "<parameter=")
_STEP: Final = (*_CODER, "reasoning_effort", "Reasoning: ")
_MIMO: Final = ("if not enable_thinking is defined", "set enable_thinking = false")
_QWEN3: Final = ("enable_thinking is defined and enable_thinking is false", "<|im_start|>")
_TEMPLATES: Final[Mapping[str, tuple[tuple[tuple[str, ...], str], ...]]] = {
    Meaning.REASONING_PARSER: (
        (("<|channel>",), "gemma4"),
        (("◁think▷",), "kimi"),
        (("<|channel|>",), "gpt-oss"),
        (("truncate_history_thinking", "enable_thinking if enable_thinking is defined else True"), "nemotron_3"),
        (_MIMO, "mimo"),
        (("]<]minimax[>[",), "minimax-m3"),
        (("<minimax:tool_call>",), "minimax"),
        (_STEP, "step3p5"),
        (_QWEN3, "qwen3"),
        (("<｜DSML｜tool_calls>",), "deepseek-v4"),  # noqa: RUF001
        (("<|im_start|>assistant\\n<think>\\n",), "deepseek-r1"),
    ),
    Meaning.TOOL_PARSER: (
        (("<|channel>",), "gemma4"),
        (("<|channel|>",), "gpt-oss"),
        (("]<]minimax[>[",), "minimax-m3"),
        (("<minimax:tool_call>",), "minimax-m2"),
        (("<｜DSML｜tool_calls>",), "deepseekv4"),  # noqa: RUF001
        (("<｜DSML｜function_calls>",), "deepseekv32"),  # noqa: RUF001
        (("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"), "deepseekv31"),  # noqa: RUF001
        (_STEP, "step3p5"),
        ((*_MIMO, *_CODER), "mimo"),
        (_CODER, "qwen3_coder"),
        ((*_QWEN3, '{"name": <function-name>'), "qwen"),
    ),
}


def parsers_of(architecture: str, model_type: str, template: str) -> tuple[ParserFlag, ...]:
    """Return the parser options for a checkpoint, by its chat template, else by its `model_type` or architecture.

    A template that mentions neither thinking nor tools needs no parser for it. sglang does not start with a reasoning
    parser whose tokens the tokenizer lacks (0.5.16, constrained/reasoner_grammar_backend.py:246).
    """
    parsers = (parser for name in (architecture, model_type) for parser in _PARSERS.get(name, ()))
    flags = {item.flag: item for item in parsers if not template or _SPOKEN_OF[item.flag] in template}
    for flag, rules in _TEMPLATES.items():
        for texts, value in rules:
            if all(text in template for text in texts):
                source = f"chat template: `{texts[0]}` (sglang 0.5.21, srt/parser/template_detection.py)"
                flags[flag] = ParserFlag(flag=flag, value=value, source=source)
                break
    return tuple(flags.values())
