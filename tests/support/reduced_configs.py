"""Configs of public models with fewer layers but the original head dimensions, ranks and states.

Tests compare the pool sizes that `deploy` computes with those that sglang 0.5.16 logs on a GPU with dummy weights.
The models: GLM-5.2, Qwen3-Coder-480B, gpt-oss-120b, Qwen3-Next-80B, Kimi-Linear-48B, DeepSeek-V3, Nemotron-3-Nano-30B,
MiniMax-M3.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pool_configs import FLASH, V4, described

from orchestrator.plan import capacity
from orchestrator.plan.capacity import KvCache
from orchestrator.plan.serving import profile_serving
from orchestrator.planner.planning import load

Config = dict[str, Any]
GIB = 1 << 30
CONTEXT = 32768
FRACTION = 0.4
POOL_CODE = "tests/integration/test_pool_code.py compares it with sglang's pool code"
# fmt: off
DTYPE: Config = {"torch_dtype": "bfloat16", "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
         "pad_token_id": 1, "vocab_size": 8192, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "tie_word_embeddings": False, "initializer_range": 0.02, "use_cache": True}

GLM: Config = {
    **DTYPE, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
    "intermediate_size": 12288, "num_hidden_layers": 8, "num_attention_heads": 64, "num_key_value_heads": 64,
    "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
    "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "indexer_types": ["full" if layer < 3 or layer % 4 == 2 else "shared" for layer in range(8)],
    "indexer_rope_interleave": True, "moe_intermediate_size": 2048, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1, "ep_size": 1,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5, "attention_bias": False, "attention_dropout": 0.0,
    "rope_theta": 1000000, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "rope_interleave": True,
}
CODER: Config = {
    **DTYPE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 6144,
    "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 96, "num_key_value_heads": 8,
    "head_dim": 128, "moe_intermediate_size": 2560, "num_experts": 8, "num_experts_per_tok": 4, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False, "attention_dropout": 0.0,
    "rope_theta": 10000000, "rope_scaling": None, "use_sliding_window": False, "sliding_window": None,
    "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0, "qkv_bias": False, "use_qk_norm": True,
}
OSS: Config = {
    **DTYPE, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 12, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 4, "experts_per_token": 4, "attention_bias": True,
    "attention_dropout": 0.0, "sliding_window": 128, "initial_context_length": 4096, "rope_theta": 150000,
    "layer_types": ["sliding_attention", "full_attention"] * 6, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.9,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
                     "beta_slow": 1.0, "truncate": False},
}
NEXT: Config = {
    **DTYPE, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
    "intermediate_size": 5120, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 10,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
    "attention_dropout": 0.0, "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_scaling": None,
}
KIMI: Config = {
    **DTYPE, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 2304,
    "intermediate_size": 9216, "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 32,
    "head_dim": 72, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "mla_use_nope": True, "first_k_dense_replace": 1, "moe_intermediate_size": 1024,
    "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_experts": 16,
    "num_experts_per_token": 8, "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1,
    "use_grouped_topk": True, "routed_scaling_factor": 2.446, "num_nextn_predict_layers": 0, "rope_scaling": None,
    "rope_theta": 10000.0, "model_max_length": CONTEXT,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12], "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11], "head_dim": 128,
                           "num_heads": 32, "short_conv_kernel_size": 4},
}
V3: Config = {
    **DTYPE, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "num_hidden_layers": 4, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "moe_intermediate_size": 2048, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "n_group": 4, "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "attention_bias": False, "attention_dropout": 0.0, "ep_size": 1, "rope_theta": 10000, "rms_norm_eps": 1e-6,
    "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1},
}
NEMOTRON: Config = {
    **DTYPE, "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688,
    "intermediate_size": 1856, "num_hidden_layers": 13, "hybrid_override_pattern": "MEMEM*EMEMEM*",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 16, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "mlp_hidden_act": "relu2", "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True,
    "mamba_hidden_act": "silu", "mamba_proj_bias": False, "chunk_size": 128, "layer_norm_epsilon": 1e-5,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "residual_in_fp32": False,
    "num_nextn_predict_layers": 0,
}
M3: Config = {
    **DTYPE, "architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "mixtral", "hidden_size": 6144,
    "intermediate_size": 3072, "dense_intermediate_size": 12288, "num_hidden_layers": 6, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "rotary_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 4,
    "n_shared_experts": 1, "scoring_func": "sigmoid", "use_routing_bias": True, "routed_scaling_factor": 2.0,
    "moe_layer_freq": [0] * 3 + [1] * 3, "qk_norm_type": "per_head", "use_gemma_norm": True, "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0, "rope_theta": 5000000, "sliding_window": None, "num_mtp_modules": 0,
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_attention_freq": [0] * 3 + [1] * 3, "sparse_index_dim": 128,
        "sparse_disable_index_value": [0] * 3 + [1] * 3, "sparse_num_index_heads": 4, "sparse_block_size": 128,
        "sparse_topk_blocks": 16, "sparse_init_block": 0, "sparse_local_block": 1, "sparse_score_type": "max"},
}
EAGLE: Config = {"speculative-algorithm": "EAGLE", "speculative-num-steps": 3, "speculative-eagle-topk": 1,
         "speculative-num-draft-tokens": 4, "max-running-requests": 48}
TRITON: Config = {"attention-backend": "triton", "moe-runner-backend": "triton"}
# fmt: on
ALWAYS: Config = {"dtype": "bfloat16", "context-length": CONTEXT, "mem-fraction-static": FRACTION}
START: Config = {  # for the start only: the computation does not use them
    "load-format": "dummy", "skip-tokenizer-init": True, "skip-server-warmup": True, "tp-size": 1,
    "cuda-graph-backend-decode": "disabled", "cuda-graph-backend-prefill": "disabled", "host": "127.0.0.1",
}  # fmt: skip


@dataclass(frozen=True)
class Logged:
    """Values in a server's log: GiB free before and after loading, tokens of the cache, and states of requests."""

    free: float
    left: float
    tokens: int
    slots: int | None = None


@dataclass(frozen=True)
class Family:
    """A config, the flags of its server, and the values that one H200 logged in November 2026."""

    config: Config
    flags: Config
    logged: Logged | None = None
    separate_mtp: bool = False
    skip_reason: str = ""  # why this engine cannot run it

    def argv(self, python: str, folder: Path, port: int) -> list[str]:
        """Return the command that starts the server on a GPU."""
        words = [python, "-m", "sglang.launch_server", f"--model-path={folder}", f"--port={port}"]
        flags = {**START, **ALWAYS, **self.flags}
        return words + [f"--{key}" if value is True else f"--{key}={value}" for key, value in flags.items()]

    def write(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(self.config))

    def computed(self, home: Path, logged: Logged) -> KvCache:
        """Return the cache that `deploy` computes from the logged free memory, with the model file of `add model`."""
        tensors = ("mtp.fc.weight",) if self.separate_mtp else ()
        found = described(home, self.config, *tensors)
        model: Config = {
            "checkpoint": {"source": "local", "path": str(home)}, "served_name": "reduced", "weights_size": GIB,
            "quantization": "bf16",
        }  # fmt: skip
        for key, fact in found.facts.items():
            section, _, name = key.rpartition(".")
            if section != "flags" and key not in model:
                (model.setdefault(section, {}) if section else model)[name] = fact.value
        flags = {key: {"value": value, "origin": "inferred"} for key, value in {**ALWAYS, **self.flags}.items()}
        profile: Config = {
            "description": "reduced", "runtime": "process", "hardware": "h200", "model": "reduced", "flags": flags,
            "engine": "sglang-0.5.16-cu130-pip", "layout": {"tp": {"value": 1, "origin": "inferred"}},
        }  # fmt: skip
        (home / "profiles" / "models").mkdir(parents=True)
        (home / "profiles/models/reduced.yaml").write_text(json.dumps(model))
        (home / "profiles/reduced.yaml").write_text(json.dumps(profile))
        with patch.dict(os.environ, DEPLOY_HOME=str(home)):
            planned = load("reduced").profile
        facts = profile_serving(planned)
        assert not capacity._unknown_reasons(planned, facts)
        memory = capacity.capacity_of(planned, facts, None).memory
        assert memory is not None
        rest = int((logged.left - logged.free * (1 - FRACTION)) * GIB)
        return capacity._cache(planned, facts, replace(memory, free_bytes=int(logged.free * GIB), cache_bytes=rest))


FAMILIES: Mapping[str, Family] = {
    "dsa": Family(GLM, {"moe-runner-backend": "triton", "kv-cache-dtype": "bfloat16"}, Logged(139.09, 131.64, 5028224)),
    "gqa": Family(CODER, TRITON, Logged(139.09, 130.83, 1550263)),
    "windows": Family(OSS, TRITON, Logged(139.09, 133.86, 2443838)),
    "gdn": Family(NEXT, TRITON, Logged(139.09, 137.10, 4931051, 1410)),
    "gdn-drafts": Family(NEXT, {**TRITON, **EAGLE}, Logged(139.09, 136.87, 6268187, 780), separate_mtp=True),
    "kda": Family(KIMI, TRITON, Logged(139.09, 135.59, 8519760, 1355)),
    "mla-nextn": Family(V3, {**TRITON, **EAGLE}, Logged(139.09, 130.19, 8700218)),
    "mamba": Family(NEMOTRON, {"attention-backend": "fa3", "moe-runner-backend": "triton"}),
    "blocks": Family(M3, TRITON),
    "compressed": Family(V4, {}, skip_reason="deploy sizes the cache of DeepSeek-V4 on ROCm alone; " + POOL_CODE),
    "kda-dsa": Family(FLASH, {}, skip_reason="sglang 0.5.16 lacks Glm5NextForConditionalGeneration; " + POOL_CODE),
}


def read_log(text: str) -> Logged:
    """Parse a server's log; loading ends with the last weights before the pools, of the target or the draft model."""

    def numbers(pattern: str, within: str = text) -> list[float]:
        return [float(found) for found in re.findall(pattern, within)]

    before = re.split(r"(?:KV|Mamba) Cache is allocated", text)[0]
    slots = numbers(r"max_mamba_cache_size: ([0-9]+)")
    return Logged(
        free=numbers(r"Load weight begin\. avail mem=([0-9.]+) GB")[0],
        left=numbers(r"Load weight end\..*?avail mem=([0-9.]+) GB", before)[-1],
        tokens=int(numbers(r"max_total_num_tokens=([0-9]+)")[-1]),
        slots=int(slots[0]) if slots else None,
    )
