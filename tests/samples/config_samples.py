"""Configs of public checkpoints, and sparse checkpoints for them.

The configs are written by hand from the public sources named here, with only the keys about shape, size and kind. The
checkpoints have real headers for a few tensors of each layer; their sparse data takes no disk space.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = dict[str, Any]
INDEX = "model.safetensors.index.json"

# huggingface.co/zai-org/GLM-5.2/blob/main/config.json, as quoted in public by its readers (max_position_embeddings,
# layers, heads, experts, index_*, q and kv ranks); key structure of a quantized GLM-5.3 (the same model class)
GLM_52: Config = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16", "hidden_size": 6144,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 78, "num_attention_heads": 64,
    "num_key_value_heads": 64, "head_dim": 192, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "index_topk": 2048,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "max_position_embeddings": 1048576, "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    "vocab_size": 154880,
}  # fmt: skip
# excerpt of the real output of AMD Quark 0.13 for such a model
QUARK_MXFP4: Config = {
    "quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "scale_format": "e8m0"}},
    "exclude": ["lm_head"],
}
# huggingface.co/zai-org/GLM-4.7-Flash; vllm tests/transformers_utils (a config of `glm4_moe_lite` of those dimensions)
GLM_47_FLASH: Config = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "dtype": "bfloat16",
    "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47,
    "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 64, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 202752, "rope_theta": 1000000, "rope_scaling": None, "vocab_size": 154880,
}  # fmt: skip
# huggingface.co/deepseek-ai/DeepSeek-V3.2/blob/main/config.json; DeepSeek-V3's, with index_* of DeepSeek-V3.2-Exp's
# inference/config_671B_v3.2.json
DEEPSEEK_V32: Config = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "torch_dtype": "bfloat16",
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1,
    "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128, "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "vocab_size": 129280,
}  # fmt: skip
# huggingface.co/Qwen/Qwen3-235B-A22B/raw/main/config.json (max_position_embeddings 40960)
QWEN3_235B: Config = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "max_position_embeddings": 40960, "rope_scaling": None, "sliding_window": None,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
# huggingface.co/openai/gpt-oss-120b/blob/main/config.json
GPT_OSS_120B: Config = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16", "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "initial_context_length": 4096,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    "vocab_size": 201088,
}  # fmt: skip
# huggingface.co/MiniMaxAI/MiniMax-M3-MXFP8/blob/main/config.json; the text part also as in
# mlx-community/MiniMax-M3-4bit. The config names MTP layers, which the published checkpoint lacks.
MINIMAX_M3: Config = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
    "auto_map": {"AutoConfig": "configuration_minimax_m3_vl.MiniMaxM3VLConfig"},
    "text_config": {
        "architectures": ["MiniMaxM3SparseForCausalLM"], "hidden_size": 6144, "intermediate_size": 3072,
        "dense_intermediate_size": 12288, "num_hidden_layers": 60, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 4,
        "n_shared_experts": 1, "num_mtp_modules": 7, "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1048576, "rope_theta": 5000000, "vocab_size": 200064,
        "sparse_attention_config": {"use_sparse_attention": True, "sparse_index_dim": 128, "sparse_topk_blocks": 16},
    },
    "vision_config": {"hidden_size": 1280, "num_attention_heads": 16, "num_hidden_layers": 32},
    "quantization_config": {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]},
}  # fmt: skip
# huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/config.json; DeepSeek-V3's class, 384 experts, no MTP layer
KIMI_K2: Config = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "torch_dtype": "bfloat16",
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
    "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    "max_position_embeddings": 131072,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "mscale": 1.0},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "vocab_size": 163840,
}  # fmt: skip
# huggingface.co/meta-llama/Llama-3.3-70B-Instruct; apxml.com/models/llama-3-3-70b (layers, heads, widths)
LLAMA_33_70B: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "vocab_size": 128256,
}  # fmt: skip


@dataclass(frozen=True)
class Public:
    """A public checkpoint: its config, the bytes of its weights, and the prefix of its tensor names."""

    config: Config
    weights: int
    prefix: str = "model."


# Rounded bytes of weights: published for GLM-5.2 and MiniMax-M3 (InferenceX #2867, sglang cookbook MiniMax-M3.mdx), and
# parameters times bytes of a weight for the others.
PUBLIC: Mapping[str, Public] = {
    "GLM-5.2-FP8": Public({**GLM_52, "quantization_config": {"quant_method": "fp8"}}, 756_000_000_000),
    "GLM-4.7-Flash": Public(GLM_47_FLASH, 62_500_000_000),
    "DeepSeek-V3.2": Public(DEEPSEEK_V32, 689_000_000_000),
    "Qwen3-235B-A22B": Public(QWEN3_235B, 470_000_000_000),
    "gpt-oss-120b": Public(GPT_OSS_120B, 65_200_000_000),
    "MiniMax-M3-MXFP8": Public(MINIMAX_M3, 440_000_000_000, "language_model.model."),
    "Kimi-K2-Instruct": Public(KIMI_K2, 1_030_000_000_000),
    "Llama-3.3-70B-Instruct": Public(LLAMA_33_70B, 141_000_000_000),
}
_NO_DRAFT = "MiniMax-M3-MXFP8"


def write_public(directory: Path, name: str, **change: object) -> Path:
    """Write a checkpoint of `PUBLIC` with config changes; None removes a key."""
    public = PUBLIC[name]
    config = {key: value for key, value in {**public.config, **change}.items() if value is not None}
    drafts = 0 if name == _NO_DRAFT else None
    return write_config(
        directory, config, shape=public.config, weights=public.weights, prefix=public.prefix, drafts=drafts
    )


def write_config(
    directory: Path,
    config: Config,
    *,
    shape: Config | None = None,
    weights: int = 20_000_000_000,
    prefix: str = "model.",
    drafts: int | None = None,
    shards: int = 4,
    experts: int = 0,
) -> Path:
    """Write a complete checkpoint with exactly `weights` bytes of files, with the tensors of the config `shape`.

    `experts` is the number of experts of each layer that have three matrices and their scales.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    tensors = dict(_tensors(shape or config, prefix, drafts))
    for layer in range((shape or config)["num_hidden_layers"] if experts else 0):
        for expert in range(experts):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"{prefix}layers.{layer}.mlp.experts.{expert}.{part}.weight"
                tensors |= {name: (16, 64), f"{name}_scale_inv": (1, 1)}
    placed: dict[str, dict[str, tuple[int, ...]]] = {}
    for number, (tensor, rows) in enumerate(tensors.items()):
        file = f"model-{number % shards + 1:05d}-of-{shards:05d}.safetensors"
        placed.setdefault(file, {})[tensor] = rows
    sizes = {file: weights // len(placed) for file in placed}
    sizes[next(iter(placed))] += weights - sum(sizes.values())
    for file, named in placed.items():
        write_file(directory / file, named, sizes[file])
    index = {"weight_map": {tensor: file for file, named in placed.items() for tensor in named}}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


def write_file(path: Path, tensors: Mapping[str, tuple[int, ...]], size: int) -> None:
    """Write a sparse safetensors file of bf16 tensors with exactly `size` bytes; a one-dimensional tensor fills it."""
    named = {"__metadata__": {"format": "pt"}}
    end = 0
    entries: dict[str, object] = dict(named)
    for name, shape in tensors.items():
        length = math.prod(shape) * 2
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + length]}
        end += length
    filler = "model.filler"
    for _ in range(4):  # the header contains the filler's size, which depends on the length of the header
        text = json.dumps(entries).encode()
        rest = size - 8 - len(text)
        entries[filler] = {"dtype": "U8", "shape": [rest - end], "data_offsets": [end, rest]}
    text = json.dumps(entries).encode()
    assert 8 + len(text) + rest == size, "the length of the header does not converge"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(size)


def _tensors(config: Config, prefix: str, drafts: int | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield a few tensors of each layer, with the shapes of a config."""
    text = {**config, **config.get("text_config", {})}
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    drafting = text.get("num_nextn_predict_layers", 0) if drafts is None else drafts
    experts = text.get("n_routed_experts") or text.get("num_experts") or text.get("num_local_experts")
    gate = "block_sparse_moe.gate" if "num_local_experts" in text else "mlp.gate"
    for layer in range(layers + drafting):
        at = f"{prefix}layers.{layer}."
        yield f"{at}input_layernorm.weight", (hidden,)
        if "kv_lora_rank" in text:
            rows = text["kv_lora_rank"] + text["qk_rope_head_dim"]
            yield f"{at}self_attn.kv_a_proj_with_mqa.weight", (rows, hidden)
        else:
            width = text.get("head_dim") or hidden // text["num_attention_heads"]
            yield f"{at}self_attn.k_proj.weight", (text["num_key_value_heads"] * width, hidden)
        if "index_topk" in text:
            yield f"{at}self_attn.indexer.wk.weight", (text["index_head_dim"], hidden)
        if experts and layer >= text.get("first_k_dense_replace", 0):
            yield f"{at}{gate}.weight", (experts, hidden)
