"""Make a GLM-4-MoE checkpoint of 8 GB with an MTP layer, random weights and its own tokenizer.

Run with the engine's Python: `python glm4_moe_mtp.py DIRECTORY`. The checkpoint exercises experts, speculation and
parallel ranks on GPUs; its output is meaningless text. The MTP layer returns its input embedding, which the layers of
the model hardly change, so that most drafts are accepted. Variants: `glm4_moe_wrong_mtp.py`, `glm4_moe_large.py`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from tiny_model import new_directory, tokenizer, word_ids

SEED: Final = 20
HIDDEN, HEADS, KV_HEADS, HEAD = 2048, 32, 4, 128
DENSE, EXPERT, TOP_K = 6144, 1024, 4
VOCABULARY: Final = 151552
CONTEXT: Final = 32768
FAINT: Final = 0.002  # standard deviation of output projections: a layer changes the residual stream only a little
CONFIG: Final = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": DENSE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "use_cache": True,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "moe_intermediate_size": EXPERT,
    "num_experts_per_tok": TOP_K,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "use_qk_norm": False,
    "num_nextn_predict_layers": 1,
    "dtype": "bfloat16",
}


@dataclass(frozen=True)
class Size:
    """The size of a checkpoint."""

    layers: int
    experts: int  # routed experts of each layer except the first

    def config(self) -> dict[str, int]:
        """Return the keys of `config.json` for this size."""
        return {"num_hidden_layers": self.layers, "n_routed_experts": self.experts}


SMALL: Final = Size(layers=12, experts=32)
LARGE: Final = Size(layers=24, experts=64)

Tensors = dict[str, torch.Tensor]
_device = "cuda" if torch.cuda.is_available() else "cpu"
_dice = torch.Generator(device=_device).manual_seed(SEED)


def noise(*shape: int, spread: float = 0.02) -> torch.Tensor:
    """Return normally distributed bf16 weights with standard deviation `spread`."""
    return (torch.randn(*shape, generator=_dice, device=_device) * spread).to(torch.bfloat16).cpu()


def ones(size: int = HIDDEN) -> torch.Tensor:
    """Return the weight of a norm."""
    return torch.ones(size, dtype=torch.bfloat16)


def mlp(name: str, width: int) -> Tensors:
    """Return a gated feed-forward block: a dense one, or one expert."""
    return {
        f"{name}.gate_proj.weight": noise(width, HIDDEN),
        f"{name}.up_proj.weight": noise(width, HIDDEN),
        f"{name}.down_proj.weight": noise(HIDDEN, width, spread=FAINT),
    }


def experts(name: str, count: int) -> Tensors:
    """Return the router, the routed experts and the shared expert."""
    tensors = {
        f"{name}.gate.weight": noise(count, HIDDEN),
        f"{name}.gate.e_score_correction_bias": torch.zeros(count),
    }
    for expert in range(count):
        tensors |= mlp(f"{name}.experts.{expert}", EXPERT)
    return tensors | mlp(f"{name}.shared_experts", EXPERT)


def layer(name: str, *, routed: int) -> Tensors:
    """Return one transformer layer; without `routed` experts a dense one."""
    return {
        f"{name}.input_layernorm.weight": ones(),
        f"{name}.post_attention_layernorm.weight": ones(),
        f"{name}.self_attn.q_proj.weight": noise(HEADS * HEAD, HIDDEN),
        f"{name}.self_attn.k_proj.weight": noise(KV_HEADS * HEAD, HIDDEN),
        f"{name}.self_attn.v_proj.weight": noise(KV_HEADS * HEAD, HIDDEN),
        f"{name}.self_attn.o_proj.weight": noise(HIDDEN, HEADS * HEAD, spread=FAINT),
        **(experts(f"{name}.mlp", routed) if routed else mlp(f"{name}.mlp", DENSE)),
    }


def mtp(name: str, vocabulary: Tensors, *, routed: int, right: bool) -> Tensors:
    """Return the MTP layer: a `right` one passes the token's embedding on, a wrong one replaces it by noise."""
    identity = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1).to(torch.bfloat16)
    return {
        **layer(name, routed=routed),
        f"{name}.eh_proj.weight": identity if right else noise(HIDDEN, 2 * HIDDEN),
        f"{name}.enorm.weight": ones(),
        f"{name}.hnorm.weight": ones(),
        f"{name}.shared_head.norm.weight": ones(),
        f"{name}.shared_head.head.weight": vocabulary["lm_head.weight"].clone(),
        f"{name}.embed_tokens.weight": vocabulary["model.embed_tokens.weight"].clone(),
    }


def write(target: Path, *, size: Size = SMALL, right: bool = True) -> None:
    """Write the checkpoint atomically, with one file for each layer."""
    with new_directory(target) as folder:
        tokens = tokenizer()
        tokens.save_pretrained(folder)
        ids = {f"{name}_token_id": getattr(tokens, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        (folder / "config.json").write_text(json.dumps({**CONFIG, **size.config(), **ids}, indent=2) + "\n")
        _write_tensors(folder, word_ids(tokens), size, right=right)


def _write_tensors(folder: Path, words: list[int], size: Size, *, right: bool) -> None:
    is_word = torch.zeros(VOCABULARY, dtype=torch.bool)
    is_word[words] = True
    head = noise(VOCABULARY, HIDDEN)
    head[~is_word] = 0  # a word always scores higher than a single byte: an answer never ends inside a character
    vocabulary = {
        "model.embed_tokens.weight": noise(VOCABULARY, HIDDEN, spread=1.0),
        "lm_head.weight": head,
        "model.norm.weight": ones(),
    }
    index: dict[str, str] = {}
    files = size.layers + 2
    total = _save(folder, files, index, vocabulary)
    for number in range(size.layers):
        routed = size.experts if number else 0
        total += _save(folder, files, index, layer(f"model.layers.{number}", routed=routed))
    last = mtp(f"model.layers.{size.layers}", vocabulary, routed=size.experts, right=right)
    total += _save(folder, files, index, last)
    document = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document, indent=2) + "\n")


def _save(folder: Path, files: int, index: dict[str, str], tensors: Tensors) -> int:
    """Write the next of `files` files and add it to the index; return the bytes of its tensors."""
    name = f"model-{len(list(folder.glob('*.safetensors'))) + 1:05}-of-{files:05}.safetensors"
    save_file(tensors, folder / name, metadata={"format": "pt"})
    index |= dict.fromkeys(tensors, name)
    return sum(tensor.nbytes for tensor in tensors.values())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: glm4_moe_mtp.py DIRECTORY")
    write(Path(sys.argv[1]).absolute())
