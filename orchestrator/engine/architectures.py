"""What sglang makes of a checkpoint's architecture: what its attention keeps of a token, and which parsers read it.

Read in sglang's wheels 0.5.14 to 0.5.23, `srt/configs/model_config.py`; lines are those of 0.5.16: latent attention at
789, sparse attention at 105, sliding windows at 1908, everything else is heads of keys and values (:940). Known here
are the architectures whose pools `engine.memory` reckons as sglang does, and those of which is known why it cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Attention: TypeAlias = Literal["heads", "latent", "other"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One of sglang's: how its attention keeps a token, and where its config.json differs from most."""

    attention: Attention
    why: str = ""  # of `other`: what is not reckoned with here
    windows: bool = False  # layers with a sliding window beside others, as `layer_types` says
    sparse: bool = False  # DeepSeek's sparse attention where the config has `index_topk`
    expert_size: str = "moe_intermediate_size"  # the key with an expert's inner dimension
    each_expert: bool = False  # routed experts are loaded one by one; drafts with the layer behind the last, if any


@dataclass(frozen=True, kw_only=True)
class ParserFlag:
    """An option that names a parser, and whose recipe it is."""

    flag: str
    value: str
    source: str


_HEADS: Final = Architecture(attention="heads")
_LATENT: Final = Architecture(attention="latent", each_expert=True)
_SPARSE: Final = Architecture(attention="latent", sparse=True, each_expert=True)
_WINDOWS: Final = "sliding windows in some of its layers, with heads or chunks of another shape"
# 0.5.16, mem_cache/kv_cache_configurator.py, `_handle_max_mamba_cache`
_LINEAR: Final = "linear attention in some of its layers, with a state that a request takes once, however long it is"


def _other(why: str, expert_size: str = "moe_intermediate_size") -> Architecture:
    return Architecture(attention="other", why=why, expert_size=expert_size)


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": _HEADS,
    "InternLM3ForCausalLM": _HEADS,
    "Qwen2ForCausalLM": _HEADS,
    "Qwen3ForCausalLM": _HEADS,
    "Qwen3MoeForCausalLM": _HEADS,
    "MistralForCausalLM": _HEADS,
    "Glm4ForCausalLM": _HEADS,
    "Glm4MoeForCausalLM": Architecture(attention="heads", each_expert=True),
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
    "Qwen3NextForCausalLM": _other(_LINEAR),
    "Qwen3_5ForConditionalGeneration": _other(_LINEAR),
    "Qwen3_5MoeForConditionalGeneration": _other(_LINEAR),
    "KimiLinearForCausalLM": _other(_LINEAR),
    "NemotronHForCausalLM": _other("Mamba layers, with a state that a request takes once, however long it is"),
    "DeepseekV4ForCausalLM": _other("compressed attention"),
    "LongcatFlashForCausalLM": _other("two attentions in each layer"),  # :982
    "MiniMaxM3SparseForCausalLM": _other("sparse attention over heads, with an indexer", "intermediate_size"),
    "MiniMaxM3SparseForConditionalGeneration": _other(
        "sparse attention over heads, with an indexer", "intermediate_size"
    ),
}

PARSERS: Final = ("reasoning-parser", "tool-call-parser")
_COOKBOOK: Final = "sglang cookbook "


def _parsers(page: str, *, reasoning: str | None = None, tools: str | None = None) -> tuple[ParserFlag, ...]:
    named = zip(PARSERS, (reasoning, tools), strict=True)
    return tuple(ParserFlag(flag=flag, value=value, source=_COOKBOOK + page) for flag, value in named if value)


# By architecture, or by `model_type` where one architecture has several families. A parser that differs between
# checkpoints of one architecture is not among them: Qwen3's Instruct does not reason, DeepSeek-V3.2-Exp calls tools as
# V3.1 does, GLM-4.7 as none of GLM-4.5 and 4.6 (GLM-4.7-Flash.mdx, "Parser names by model").
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


def parsers_of(architecture: str, model_type: str) -> tuple[ParserFlag, ...]:
    """The parsers that every checkpoint of an architecture and `model_type` is read with."""
    return next((_PARSERS[name] for name in (model_type, architecture) if name in _PARSERS), ())
