"""The bytes of a token and of a request that are computed beforehand, against sglang 0.5.23's own pool code.

The configs are the public ones of the models (ai-dynamo/aiconfigurator, `model_configs`), without what no pool needs.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from wheels import unpacked

from orchestrator.hosts.venvs.venv import Venv
from orchestrator.plan.capacity import KvCache
from orchestrator.planner.planning import load

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "support" / "pool_code.py"
Config = Mapping[str, object]
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
NO_DRAFTS = tuple(
    f"flags.speculative-{name}=null" for name in ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
)
TILELANG = ("flags.dsa-prefill-backend=tilelang", "flags.dsa-decode-backend=tilelang")
FP8 = "flags.kv-cache-dtype=fp8_e4m3"
# config, tp, bytes of a value, draft tokens; the shipped profile with that model, and overrides
CASES: Mapping[str, tuple[Config, int, int, int, str, tuple[str, ...]]] = {
    "glm": (GLM, 8, 1, 0, "mi355x-glm-5.3-tp8", (*NO_DRAFTS, *TILELANG)),
    "glm-drafts": (GLM, 8, 1, 6, "mi355x-glm-5.3-tp8", TILELANG),
    "glm-bf16": (GLM, 8, 2, 6, "mi355x-glm-5.3-tp8", ("flags.kv-cache-dtype=bfloat16", *TILELANG)),
    "qwen3.5": (QWEN, 4, 1, 0, "mi355x-qwen3.5-397b-tp4", (*NO_DRAFTS, "env.SGLANG_MAMBA_SSM_DTYPE=null")),
    "qwen3.5-drafts": (QWEN, 2, 1, 4, "mi355x-qwen3.5-397b-tp2x4", ("env.SGLANG_MAMBA_SSM_DTYPE=null",)),
    "flash": (FLASH, 4, 2, 0, "mi355x-glm-5.3-flash-tp4", NO_DRAFTS),
    "flash-drafts": (FLASH, 1, 1, 3, "mi355x-glm-5.3-flash-tp1x8", (FP8,)),
    "v4": (V4, 8, 1, 0, "mi355x-deepseek-v4-flash-tp8", (*NO_DRAFTS, "flags.max-running-requests=64")),
    "v4-drafts": (V4, 8, 1, 4, "mi355x-deepseek-v4-flash-tp8", ()),
    "v4-pro-drafts": (V4_PRO, 8, 1, 4, "mi355x-deepseek-v4-pro-tp8", ()),
    "kimi": (KIMI, 4, 1, 0, "mi355x-kimi-k2.7-tp4", ()),
    "coder": (CODER, 8, 2, 0, "mi355x-qwen3-coder-tp8", ()),
    "minimax": (M3, 8, 1, 0, "mi355x-minimax-m3-tp8", (FP8,)),
    "minimax-bf16": (M3, 8, 2, 0, "mi355x-minimax-m3-tp8", ()),
}  # fmt: skip
ENGINE = ("engine.version=0.5.23", "engine.image=rocm/sgl-dev:mine")


@pytest.fixture(scope="module")
def real(cpu_environment: Venv) -> dict[str, dict[str, float]]:
    """What sglang's code makes of each case."""
    asked = {
        name: {"config": config, "tp": tp, "element": element, "drafts": drafts, "running": 64,
               "env": {"SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton"}}
        for name, (config, tp, element, drafts, _, _) in CASES.items()
    }  # fmt: skip
    done = subprocess.run(
        [cpu_environment.python, SCRIPT, unpacked("0.5.23")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, dict[str, float]] = json.loads(done.stdout)
    return told


def computed(name: str) -> KvCache:
    *_, profile, overrides = CASES[name]
    found = load(profile, overrides=[*ENGINE, *overrides]).valid.capacity.cache
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_sglangs_own_pool_code(real: dict[str, dict[str, float]], name: str) -> None:
    told, cache = real[name], computed(name)
    print(f"{name}: computed {cache.token_bytes:,.2f} B, sglang {told['token']:,.2f} B a token")
    assert cache.token_bytes == pytest.approx(told["token"], abs=0.01)
    if "state" in told:
        assert cache.requests is not None
        assert cache.requests.each == told["state"]
    if "fixed" in told:
        assert cache.requests is not None
        assert cache.requests.bytes == told["fixed"]
