"""The config.json of a Quark checkpoint with the structure of GLM-5.2 and small dimensions."""

HIDDEN, MOE, EXPERTS, LAYERS = 256, 128, 8, 78
LAYER = f"model.layers.{LAYERS}"
HEADS, NOPE, ROPE, VALUE, Q_RANK, KV_RANK = 4, 32, 16, 32, 64, 32
INDEX_HEADS, INDEX_DIM = 4, 128

_FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
_SELF_ATTN = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "indexer.wq_b", "indexer.wk")
_MLP = ("gate_proj", "up_proj", "down_proj")


def exclude(experts: str) -> list[str]:
    """Return Quark's list of unquantized modules: attention, gates, and the bf16 modules of the MTP layer.

    It names leaf modules, as AMD's export does (sgl-project/sglang#30265, #36870).
    """
    names = ["lm_head"]
    for layer in range(LAYERS + 1):
        names += [f"model.layers.{layer}.self_attn.{name}" for name in _SELF_ATTN]
        names.append(f"model.layers.{layer}.mlp.gate")
    names += [f"model.layers.{layer}.mlp.{name}" for layer in range(3) for name in _MLP]
    names += [f"{LAYER}.eh_proj", *(f"{LAYER}.mlp.shared_experts.{name}" for name in _MLP)]
    if experts == "bf16":
        names += [f"{LAYER}.mlp.experts.{expert}.{name}" for expert in range(EXPERTS) for name in _MLP]
    return names


def glm_config(experts: str) -> dict[str, object]:
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": 512,
        "moe_intermediate_size": MOE,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "qk_head_dim": NOPE + ROPE,
        "v_head_dim": VALUE,
        "head_dim": ROPE,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
        "index_topk": 64,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "quark",
            "exclude": exclude(experts),
            "global_quant_config": {
                "weight": {**_FP4, "is_dynamic": False},
                "input_tensors": {**_FP4, "is_dynamic": True},
                "output_tensors": None,
                "bias": None,
            },
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "export": {"kv_cache_group": [], "pack_method": "reorder"},
        },
    }
