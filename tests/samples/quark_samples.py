"""Checkpoints in the format of AMD Quark 0.13, made without Quark: a tiny GLM-5.2 of zeros for each recipe.

Real Quark quantized a random `GlmMoeDsaForCausalLM` (transformers 5.16.1) with the MTP layer of zai-org/GLM-5.2 file to
file. `REAL` has a digest of its output for each recipe: names, dtypes and shapes of tensors, and the lists and types in
its config. `facts_digest` computes this digest for the checkpoints made here.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch, translate
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

Header = dict[str, tuple[str, tuple[int, ...]]]  # a tensor's dtype and shape

HIDDEN, INNER, MOE, Q_RANK, KV_RANK, NOPE, ROPE, VALUE, HEADS, INDEX_DIM = 256, 512, 128, 128, 64, 64, 32, 64, 4, 128
VOCABULARY = 512
_FP4: Final = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
_FP8: Final = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "group_size": None, "scale_format": None}
_BYTES: Final = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}
_NOT_LINEAR: Final = ("embed_tokens", "norm", "enorm", "hnorm", "layernorm")
# The excludes of Quark's own template for `glm_moe_dsa`; the card of amd/GLM-5.2-MXFP4 adds the MTP layer.
_EXPERTS_ALONE: Final = (
    "*self_attn*", "*mlp.gate", "*lm_head", "*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj",
)  # fmt: skip
_SHARED, _MTP = "*shared_experts*", "*layers.{mtp}.*"


@dataclass(frozen=True)
class Recipe:
    """Quark's patterns of excluded modules and of FP8 modules."""

    exclude: tuple[str, ...]
    fp8: str = ""


RECIPES: Mapping[str, Recipe] = {
    "default": Recipe(_EXPERTS_ALONE),
    "amd52": Recipe((*_EXPERTS_ALONE, _MTP)),
    "glm5": Recipe((*_EXPERTS_ALONE, _SHARED)),  # the card of amd/GLM-5-MXFP4
    "wafer": Recipe((*_EXPERTS_ALONE, _SHARED, _MTP)),  # wafer.ai/blog/glm52-amd
    "wafer-mx": Recipe((*_EXPERTS_ALONE, _SHARED, "*eh_proj")),
    "mtpfp8": Recipe(_EXPERTS_ALONE, fp8=_MTP),
    "sharedfp8": Recipe((*_EXPERTS_ALONE, _MTP), fp8=_SHARED),
    "attnfp8": Recipe(  # amd/GLM-5.2-Quark-MXFP4-AttnFP8
        ("*lm_head", "*embed_tokens", "*eh_proj", "*mlp.gate", "*self_attn.indexer.weights_proj"), fp8="*self_attn*"
    ),
}
REAL: Mapping[str, str] = {  # by recipe, for 4 layers (1 dense) and 8 experts
    "default": "58c4bb7fd49d8cc9",
    "amd52": "d035145112417b74",
    "glm5": "af4221bd057870d5",
    "wafer": "47f7864287586b50",
    "wafer-mx": "ac8988b1926a4cac",
    "mtpfp8": "01e3b2180dd6ba30",
    "sharedfp8": "f5c03057b47ef142",
    "attnfp8": "cbad0f0863bebe7d",
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A GLM-5.2 with the original structure and small dimensions."""

    layers: int = 4
    dense: int = 1
    experts: int = 8

    def config(self) -> dict[str, Any]:
        """Return config.json of the unquantized model."""
        return {
            "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16",
            "hidden_size": HIDDEN, "intermediate_size": INNER, "moe_intermediate_size": MOE,
            "num_hidden_layers": self.layers, "num_nextn_predict_layers": 1, "first_k_dense_replace": self.dense,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": Q_RANK,
            "kv_lora_rank": KV_RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "qk_head_dim": NOPE + ROPE,
            "head_dim": ROPE, "v_head_dim": VALUE, "index_n_heads": HEADS, "index_head_dim": INDEX_DIM,
            "index_topk": 64, "index_topk_freq": 4, "index_skip_topk_offset": 3, "n_routed_experts": self.experts,
            "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
            "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "moe_layer_freq": 1, "ep_size": 1, "vocab_size": VOCABULARY,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "hidden_act": "silu", "attention_bias": False,
            "tie_word_embeddings": False, "rope_theta": 8000000,
            "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
        }  # fmt: skip

    def header(self) -> Header:
        """Return the bf16 tensors."""
        found: Header = {f"{name}.weight": ("BF16", (VOCABULARY, HIDDEN)) for name in ("lm_head", "model.embed_tokens")}
        found["model.norm.weight"] = ("BF16", (HIDDEN,))
        for layer in range(self.layers + 1):
            for name, shape in self._layer(layer):
                leaf = name if name.endswith("bias") else f"{name}.weight"
                drafts = layer == self.layers and leaf.endswith("correction_bias")  # this tensor was written by hand
                found[f"model.layers.{layer}.{leaf}"] = ("F32" if drafts else "BF16", shape)
        return found

    def _layer(self, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        if layer == self.layers:
            yield from ((name, (HIDDEN,)) for name in ("enorm", "hnorm", "shared_head.norm"))
            yield "eh_proj", (HIDDEN, 2 * HIDDEN)
        yield from ((name, (HIDDEN,)) for name in ("input_layernorm", "post_attention_layernorm"))
        attention = {
            "q_a_proj": (Q_RANK, HIDDEN), "q_a_layernorm": (Q_RANK,), "q_b_proj": (HEADS * (NOPE + ROPE), Q_RANK),
            "kv_a_proj_with_mqa": (KV_RANK + ROPE, HIDDEN), "kv_a_layernorm": (KV_RANK,),
            "kv_b_proj": (HEADS * (NOPE + VALUE), KV_RANK), "o_proj": (HIDDEN, HEADS * VALUE),
        }  # fmt: skip
        indexer = {
            "wq_b": (HEADS * INDEX_DIM, Q_RANK), "wk": (INDEX_DIM, HIDDEN), "k_norm": (INDEX_DIM,),
            "k_norm.bias": (INDEX_DIM,), "weights_proj": (HEADS, HIDDEN),
        }  # fmt: skip
        yield from ((f"self_attn.{name}", shape) for name, shape in attention.items())
        if layer < 3 or (layer - 2) % 4 == 0 or layer == self.layers:  # the first three layers, then every fourth one
            yield from ((f"self_attn.indexer.{name}", shape) for name, shape in indexer.items())
        if layer < self.dense:
            yield from _mlp("mlp", INNER)
            return
        yield "mlp.gate", (self.experts, HIDDEN)
        yield "mlp.gate.e_score_correction_bias", (self.experts,)
        for name in ("shared_experts", *(f"experts.{number}" for number in range(self.experts))):
            yield from _mlp(f"mlp.{name}", MOE)

    def quantized(self, recipe: str) -> tuple[dict[str, Any], Header]:
        """Return config.json and the tensors of Quark's output."""
        rules, header = RECIPES[recipe], dict(self.header())
        patterns = [translate(pattern.format(mtp=self.layers)) for pattern in rules.exclude]
        is_excluded = re.compile("|".join(patterns)).match
        fp8 = rules.fp8.format(mtp=self.layers)
        exclude = []
        for name, (_, shape) in self.header().items():
            module = name.removesuffix(".weight")
            if len(shape) != 2 or not name.endswith(".weight") or module.endswith(_NOT_LINEAR):
                continue
            if is_excluded(module):
                exclude.append(module)
            else:
                header |= _stored(name, shape, fp8=bool(fp8) and fnmatch(module, fp8))
        given = {
            "quant_method": "quark", "version": "0.13", "quant_mode": "eager_mode",
            "global_quant_config": _scheme(_FP4), "exclude": sorted(exclude),
            "layer_quant_config": {fp8: _scheme(_FP8)} if fp8 else {}, "layer_type_quant_config": {},
            "kv_cache_quant_config": {}, "export": {"kv_cache_group": [], "pack_method": "reorder"},
        }  # fmt: skip
        return {**self.config(), "quantization_config": given}, header


def _mlp(name: str, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.down_proj", (HIDDEN, inner)
    yield f"{name}.gate_proj", (inner, HIDDEN)
    yield f"{name}.up_proj", (inner, HIDDEN)


def _scheme(kind: Mapping[str, object]) -> dict[str, object]:
    return {
        "weight": {**kind, "is_dynamic": False},
        "input_tensors": {**kind, "is_dynamic": True},
        "output_tensors": None,
        "bias": None,
    }


def _stored(name: str, shape: tuple[int, ...], *, fp8: bool) -> Header:
    rows, columns = shape
    if fp8:
        return {name: ("F8_E4M3", shape), f"{name}_scale": ("F32", (rows,))}
    return {name: ("U8", (rows, columns // 2)), f"{name}_scale": ("U8", (rows, columns // 32))}


def facts_digest(config: Mapping[str, Any], header: Header) -> str:
    """Return a digest of a checkpoint's quantization config and tensors."""
    given = config["quantization_config"]
    schemes = {"": given["global_quant_config"], **given["layer_quant_config"]}
    types = {
        key: [
            (kind := scheme[tensor_kind]) and [kind[name] for name in _FP4]
            for tensor_kind in ("weight", "input_tensors")
        ]
        for key, scheme in schemes.items()
    }
    tensors = {name: [dtype, *shape] for name, (dtype, shape) in header.items()}
    facts = json.dumps([given["exclude"], types, tensors], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def write_tiny(folder: Path, config: Mapping[str, Any], header: Header) -> Path:
    """Write a complete checkpoint with these tensors as sparse zeros, and the MTP layer in a separate file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    drafts = f"model.layers.{config['num_hidden_layers']}."
    weight_map = {name: "model-mtp.safetensors" if name.startswith(drafts) else "model.safetensors" for name in header}
    for file in sorted(set(weight_map.values())):
        write_tensors(folder / file, {name: kind for name, kind in header.items() if weight_map[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def size_of(tensor: tuple[str, tuple[int, ...]]) -> int:
    """Return the bytes of a tensor."""
    dtype, shape = tensor
    return prod(shape) * _BYTES[dtype]


def write_tensors(path: Path, header: Header) -> None:
    """Write a sparse safetensors file of zeros."""
    entries, end = {}, 0
    for name, (dtype, shape) in header.items():
        begin, end = end, end + size_of((dtype, shape))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def read_tiny(folder: Path) -> tuple[dict[str, Any], Header]:
    """Return the config and tensors of a checkpoint, as for the digests in `REAL`."""
    header: Header = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header |= {
            name: (entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items() if name != "__metadata__"
        }
    return json.loads((folder / "config.json").read_text()), header


def promised(header: Header) -> Header:
    """Return the tensors with routed experts in bf16, as Quark writes them without preparation of the model."""
    bf16 = Tiny().header()
    remaining = {name: kind for name, kind in header.items() if ".mlp.experts." not in name}
    return {**remaining, **{name: kind for name, kind in bf16.items() if ".mlp.experts." in name}}


def together(header: Header) -> Header:
    """Return the tensors with one tensor for a layer's experts and no MTP layer, as Quark writes them by default."""
    remaining = {
        name: kind for name, kind in header.items() if ".mlp.experts." not in name and ".layers.4." not in name
    }
    for layer in (1, 2, 3):
        at = f"model.layers.{layer}.mlp.experts"
        remaining |= {f"{at}.gate_up_proj": ("BF16", (8, 256, 256)), f"{at}.down_proj": ("BF16", (8, 256, 128))}
    return remaining


def without(substring: str) -> Callable[[Header], Header]:
    return lambda header: {name: kind for name, kind in header.items() if substring not in name}


def _changed(recipe: str, change: Callable[[Header], Header]) -> tuple[dict[str, Any], Header]:
    config, header = Tiny().quantized(recipe)
    return config, change(header)


CHECKPOINTS: Mapping[str, Callable[[], tuple[dict[str, Any], Header]]] = {
    **{recipe: partial(Tiny().quantized, recipe) for recipe in RECIPES},
    "bf16, not quantized": lambda: (Tiny().config(), Tiny().header()),
    "amd52, of 78 layers": lambda: Tiny(layers=78, dense=3).quantized("amd52"),
    "default, its model not prepared": lambda: _changed("default", promised),
    "amd52, not prepared, experts in one tensor": lambda: _changed("amd52", together),
    "amd52, without one expert of layer 2": lambda: _changed("amd52", without(".layers.2.mlp.experts.7.")),
    "amd52, without the MTP layer's eh_proj": lambda: _changed("amd52", without(".layers.4.eh_proj")),
}
