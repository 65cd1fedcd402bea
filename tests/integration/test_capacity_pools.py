"""Compare the computed KV cache capacity with the pools that real sglang 0.5.14 allocates on a CPU.

The free memory of a CPU varies, so the tests compare what sglang derives from the free bytes and the size of its
pools. tests/unit/plan/test_capacity_fit.py compares GPUs by their logs; tests/gpu runs on GPUs.
"""

import json
import os
import re
from pathlib import Path

import pytest
from torch_forks import Program, run_forked

from orchestrator.hosts.venvs.venv import Venv
from orchestrator.plan.capacity import KvCache
from orchestrator.planner.planning import load

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "support" / "cache_pools.py"
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "dtype": "bfloat16", "tie_word_embeddings": False, **IDS,
}  # fmt: skip
GLM_MTP = {
    **LLAMA, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 3, "head_dim": 64,
    "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "partial_rotary_factor": 0.5, "attention_bias": False, "use_qk_norm": False, "num_nextn_predict_layers": 1,
}  # fmt: skip
MLA = {
    **LLAMA, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 3,
    "num_key_value_heads": 4, "kv_lora_rank": 64, "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1,
    "num_experts_per_tok": 2, "topk_group": 1, "topk_method": "greedy", "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0, "norm_topk_prob": False, "scoring_func": "softmax", "attention_bias": False,
    "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 8.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1},
}  # fmt: skip
WINDOWS = {
    **LLAMA, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 4, "head_dim": 32,
    "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True,
    "sliding_window": 128, "swiglu_limit": 7.0, "rope_theta": 150000,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": False},
}  # fmt: skip
WINDOWED = ("layers=4", "kv_cache.head_dim=32", "kv_cache.sliding_window=128", "kv_cache.sliding_layers=3")
TRITON = "attention-backend=triton"  # gpt-oss accepts few backends; a CPU accepts this one
DRAFTS = ("speculative-algorithm=EAGLE", "speculative-num-steps=5", "speculative-eagle-topk=1",
          "speculative-num-draft-tokens=6", "max-running-requests=4")  # fmt: skip

# config.json, the keys of the model entry, and the flags
CASES = {
    "gqa": (LLAMA, (), ("max-total-tokens=1000000",)),
    "mha-fp8": (
        {**LLAMA, "num_key_value_heads": 4},
        ("kv_heads=4",),
        ("max-total-tokens=1000001", "kv-cache-dtype=fp8_e4m3", "page-size=16"),
    ),
    "moe-with-mtp": (
        GLM_MTP,
        ("layers=3", "mtp_layer=3", "kv_cache.head_dim=64"),
        ("max-total-tokens=500000", *DRAFTS),
    ),
    "windows": (WINDOWS, WINDOWED, ("max-total-tokens=300000", TRITON)),
    "windows-by-ratio": (
        WINDOWS, WINDOWED, ("max-total-tokens=300001", TRITON, "swa-full-tokens-ratio=0.3", "page-size=16"),
    ),
    "mla": (
        MLA,
        (
            *("layers=3", "kv_heads=null", "kv_cache.head_dim=null"),
            *("kv_cache.kv_lora_rank=64", "kv_cache.qk_rope_head_dim=16"),
        ),
        ("max-total-tokens=1000000",),
    ),
}  # fmt: skip


def computed(name: str) -> KvCache:
    _, facts, flags = CASES[name]
    overrides = [*(f"model.{fact}" for fact in facts), *(f"flags.{flag}" for flag in flags)]
    cache = load("cpu-tiny", overrides=overrides).capacity.cache
    assert cache is not None
    return cache


@pytest.fixture(scope="module")
def real(cpu_environment: Venv, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Return the pools that sglang allocated for each case."""
    folder = tmp_path_factory.mktemp("pools")
    cases = {
        name: (config, [word for flag in flags for word in ("--" + flag).split("=")])
        for name, (config, _, flags) in CASES.items()
    }
    program = Program(program=str(SCRIPT), argv=(str(folder),), stdin=json.dumps(cases))
    done = run_forked(cpu_environment.python, {"": program}, {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"})[""]
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_computed_tokens_and_bytes_match_sglang_pools(real: dict[str, dict[str, object]], name: str) -> None:
    logged, cache = real[name], computed(name)
    assert "raised" not in logged, logged
    # the tokens that fit into the free memory
    assert logged["fitting"] == logged["available"] // cache.token_bytes // cache.page * cache.page  # type: ignore[operator]
    # the requested tokens, in whole pages
    assert logged["tokens"] == cache.tokens
    assert logged["window_tokens"] == cache.window_tokens
    # the pools have one page more than the tokens
    pools = logged["pools"]
    assert isinstance(pools, list)
    assert sum(pools) == pytest.approx(cache.actual_token_bytes * (int(cache.tokens or 0) + cache.page), rel=1e-3)


def test_computed_kv_cache_size_matches_log_line(real: dict[str, dict[str, object]]) -> None:
    """Users compare this log line, which has GiB with two digits."""
    cache = computed("gqa")
    line = next(line for line in real["gqa"]["lines"] if line.startswith("KV Cache is allocated"))  # type: ignore[attr-defined]
    match = re.search(r"#tokens: ([0-9]+), K size: ([0-9.]+) GB, V size: ([0-9.]+) GB", line)
    assert match is not None
    assert int(match[1]) == cache.tokens
    assert float(match[2]) + float(match[3]) == pytest.approx(
        cache.actual_token_bytes * int(match[1]) / 2**30, rel=0.05
    )
