"""The config keys of public models that sglang's pools depend on (ai-dynamo/aiconfigurator, `model_configs`).

NEXT: huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct; LINEAR: moonshotai/Kimi-Linear-48B-A3B-Instruct; NEMOTRON:
nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.
"""

import json
from pathlib import Path
from typing import Any

from config_samples import INDEX

from orchestrator.checkpoints.describe import Description, describe
from orchestrator.checkpoints.summary import local_summary

Config = dict[str, Any]
GLM: Config = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144, "dtype": "bfloat16",
    "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512,
    "q_lora_rank": 2048, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_head_dim": 128,
    "index_n_heads": 32, "index_topk": 2048, "max_position_embeddings": 1048576, "num_nextn_predict_layers": 1,
    "indexer_types": ["full" if layer < 3 or layer % 4 == 2 else "shared" for layer in range(78)],
}  # fmt: skip
QWEN: Config = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_value_head_dim": 128, "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "mtp_num_hidden_layers": 1,
    },
}  # fmt: skip
FLASH: Config = {
    "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
    "vision_config": {"swiglu_limit": 10.0},
    "text_config": {
        "model_type": "glm5_next_text", "hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 0, "qk_nope_head_dim": 256, "v_head_dim": 256,
        "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "index_kpool": 4, "dtype": "bfloat16",
        "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4, "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1048576, "n_routed_experts": 288,
    },
}  # fmt: skip
V4: Config = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "dtype": "bfloat16", "hidden_size": 4096,
    "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
    "o_lora_rank": 1024, "o_groups": 8, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 512, "sliding_window": 128, "max_position_embeddings": 1048576, "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "n_routed_experts": 256, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_hash_layers": 3, "rope_theta": 10000,
}  # fmt: skip
V4_PRO: Config = {
    **V4, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "q_lora_rank": 1536,
    "index_topk": 1024, "compress_ratios": [128, *[128, 4] * 30, 0], "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
}  # fmt: skip
V41: Config = {
    **V4, "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "hidden_size": 5120,
    "num_hidden_layers": 40, "num_nextn_predict_layers": 0, "compress_ratios": [0, 0, *[2] * 18, *[1] * 20],
    "kv_source_layer_ids": [2, 8, 14, 20], "n_routed_experts": 384, "moe_intermediate_size": 2304,
}  # fmt: skip
KIMI: Config = {  # the text part of KimiK25ForConditionalGeneration
    **{key: value for key, value in GLM.items() if not key.startswith("index")}, "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 0, "max_position_embeddings": 262144,
}  # fmt: skip
CODER: Config = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 6144, "num_hidden_layers": 62,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
    "dtype": "bfloat16",
}  # fmt: skip
M3: Config = {
    "architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "mixtral", "hidden_size": 6144, "dtype": "bfloat16",
    "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 1048576,
    "sparse_attention_config": {
        "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_disable_index_value": [0] * 3 + [1] * 57,
        "sparse_index_dim": 128, "use_sparse_attention": True, "sparse_block_size": 128, "sparse_topk_blocks": 16,
    },
}  # fmt: skip
NEXT: Config = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "dtype": "bfloat16",
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
LINEAR: Config = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 2304, "dtype": "bfloat16",
    "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72, "kv_lora_rank": 512,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True,
    "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "num_nextn_predict_layers": 0, "model_max_length": 1048576,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [layer for layer in range(1, 27) if layer % 4], "head_dim": 128, "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}  # fmt: skip
NEMOTRON: Config = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688, "dtype": "bfloat16",
    "num_hidden_layers": 52, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 128, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "moe_intermediate_size": 1856, "max_position_embeddings": 262144,
}  # fmt: skip
OSS: Config = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "dtype": "bfloat16",
    "layer_types": ["sliding_attention", "full_attention"] * 18, "max_position_embeddings": 131072,
    "num_local_experts": 128, "num_experts_per_tok": 4, "intermediate_size": 2880,
}  # fmt: skip


def described(folder: Path, config: Config, *tensors: str) -> Description:
    """Return the description that `add model` derives from a config and the names of tensors."""
    text = {**config, **config.get("text_config", {})}
    names = [f"model.layers.{layer}.input_layernorm.weight" for layer in range(text["num_hidden_layers"])]
    if text.get("num_nextn_predict_layers"):
        names.append(f"model.layers.{text['num_hidden_layers']}.input_layernorm.weight")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys([*names, *tensors], "model-1-of-2.safetensors")}
    (folder / INDEX).write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return describe(local_summary(folder, config_only=True), ["quantization"])
