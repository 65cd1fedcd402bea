"""Reader of a checkpoint's config.json, to create model files and to check profiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from orchestrator.core.safe_paths import CheckpointFile
from orchestrator.core.text import parse_json

CONFIG: Final = CheckpointFile("config.json")
QUANT_CONFIG: Final = CheckpointFile("hf_quant_config.json")  # ModelOpt's, if config.json has no quantization
_TEXT: Final = ("text_config", "llm_config", "language_config")  # in multimodal models
LAYERS: Final = "num_hidden_layers"
LAYER_TYPES: Final = "layer_types"
DRAFTS: Final = "num_nextn_predict_layers"
SPARSE: Final = "index_topk"  # sglang 0.5.14, srt/configs/model_config.py, is_deepseek_dsa
# The names in config.json for each key of a model's file; the first present name counts. Context: sglang 0.5.14 to
# 0.5.23, srt/utils/hf_transformers/common.py, CONTEXT_LENGTH_KEYS, in this order.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": (LAYERS,),
    "attention_heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "context_length": (
        "max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings"
    ),
    "moe.hidden_size": ("hidden_size",),
    "moe.intermediate_size": ("moe_intermediate_size",),
    "moe.routed_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "moe.shared_experts": ("n_shared_experts", "num_shared_experts"),
    "moe.experts_per_token": ("num_experts_per_tok", "num_experts_per_token"),
    "kv_cache.head_dim": ("head_dim",),
    "kv_cache.v_head_dim": ("v_head_dim",),
    "kv_cache.kv_lora_rank": ("kv_lora_rank",),
    "kv_cache.qk_rope_head_dim": ("qk_rope_head_dim",),
    "kv_cache.index_head_dim": ("index_head_dim",),
    "kv_cache.sliding_window": ("sliding_window",),
}  # fmt: skip
_MAX_COUNT: Final = 1 << 53  # larger numbers are invalid
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_QUARK: Final = {"fp4": "mxfp4"}  # Quark's dtype → profile's dtype; other names are equal


@dataclass(frozen=True, kw_only=True)
class ConfigFact:
    """A value from a checkpoint, and its source."""

    value: object
    source: str

    @property
    def number(self) -> int:
        """The value as a number; 0 for any other value."""
        return self.value if isinstance(self.value, int) else 0


@dataclass(frozen=True)
class CheckpointConfig:
    """A config.json; its section for text takes precedence."""

    data: Mapping[str, object]

    @classmethod
    def parse(cls, content: bytes) -> "CheckpointConfig":
        """Parse a file. Raises ValueError if it is not a JSON object."""
        data = parse_json(content)
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for every caller
        return cls(data)

    @cached_property
    def text(self) -> Mapping[str, object]:
        """All keys; those of the text section take precedence."""
        inner = next((inner for name in _TEXT if isinstance(inner := self.data.get(name), dict)), {})
        return {**self.data, **inner}

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures as sglang reads them: the top level takes precedence."""
        names = self.data.get("architectures", self.text.get("architectures"))
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()

    @property
    def model_type(self) -> str:
        """The top-level `model_type`."""
        return str(self.data.get("model_type", ""))

    def count(self, key: str, *names: str) -> ConfigFact | None:
        """Return an integer by the first present of `names` (default: `NAMES[key]`); None if there is none."""
        for name in names or NAMES[key]:
            value = self.text.get(name)
            if type(value) is int and abs(value) < _MAX_COUNT:
                return ConfigFact(value=value, source=name)
        return None

    @property
    def windows(self) -> tuple[bool, ...]:
        """Whether each layer has a sliding window; empty if the config has no list of layers."""
        types = self.text.get(LAYER_TYPES)
        return tuple(layer_type == "sliding_attention" for layer_type in types) if isinstance(types, list) else ()

    @property
    def index_layers(self) -> ConfigFact | None:
        """The layers with an indexer; None if all have one (0.5.23, configs/model_config.py, dsa_layer_skips_topk)."""
        kinds, layers = self.text.get("indexer_types"), self.count("layers")
        freq, offset = self.text.get("index_topk_freq"), self.text.get("index_skip_topk_offset")
        if isinstance(kinds, list):
            count, source = sum(kind != "shared" for kind in kinds), "indexer_types"
        elif layers is not None and type(freq) is int and freq > 1 and type(offset) is int:
            count = sum(max(layer - offset + 1, 0) % freq == 0 for layer in range(min(layers.number, 1024)))
            source = "index_topk_freq, index_skip_topk_offset"
        else:
            return None
        every = layers is not None and count >= layers.number
        return None if every or count < 1 else ConfigFact(value=count, source=f"{CONFIG}: {source}")

    @property
    def mtp_layers(self) -> int | None:
        """The number of MTP layers; None if the config has no such key."""
        number = self.text.get(DRAFTS)
        return number if isinstance(number, int) else None

    @property
    def rope(self) -> Mapping[str, object]:
        """The scaling of positions; empty if there is none."""
        section = self.text.get("rope_scaling") or self.text.get("rope_parameters")
        return section if isinstance(section, dict) else {}

    def context(self) -> ConfigFact | None:
        """Return the maximum context length as computed by sglang 0.5.14 to 0.5.23 (common.py, get_context_length)."""
        length = self.count("context_length")
        factor = self.rope.get("factor", 1)
        already_scaled = "original_max_position_embeddings" in self.rope or self.rope.get("rope_type") == "llama3"
        if length is None or already_scaled or factor == 1:
            return length
        if not isinstance(factor, int | float) or not 0 < factor < _MAX_COUNT:
            return None
        return ConfigFact(value=int(factor * length.number), source=f"{length.source} x rope_scaling.factor")

    @property
    def method(self) -> ConfigFact | None:
        """The quantization method."""
        name = self.quantized.get("quant_method")
        return ConfigFact(value=str(name), source="quantization_config.quant_method") if name else None

    @property
    def quantized(self) -> Mapping[str, object]:
        """The quantization config; empty if there is none."""
        section = self.text.get("quantization_config") or self.data.get("quantization_config")
        return section if isinstance(section, dict) else {}

    def quantization(self) -> ConfigFact | None:
        """Return the `quantization` of a model's file: the method and format, or the dtype of unquantized weights."""
        section, method = self.quantized, self.method
        if algorithm := section.get("quant_algo"):
            return ConfigFact(value=modelopt_label(algorithm), source="quantization_config.quant_algo")
        if method is not None and method.value == "quark":
            dtype = _quark_dtype(section)
            source = "quantization_config.global_quant_config.weight.dtype"
            return ConfigFact(value=f"quark-{_QUARK.get(dtype, dtype)}", source=source) if dtype else None
        if method is not None or section:
            return method if method is not None and method.value != "modelopt" else None
        for name in ("dtype", "torch_dtype"):
            if (dtype := _DTYPES.get(str(self.text.get(name)))) is not None:
                return ConfigFact(value=dtype, source=name)
        return None


def modelopt_label(algorithm: object) -> str:
    """Return the `quantization` of a model's file for ModelOpt's `quant_algo`."""
    label = str(algorithm).lower().replace("_", "-")
    return label if label == "nvfp4" else f"modelopt-{label}"


def _quark_dtype(section: Mapping[str, object]) -> str | None:
    """Return the dtype of weights in Quark's global scheme, or in its first step."""
    scheme = section.get("global_quant_config")
    weight = scheme.get("weight") if isinstance(scheme, dict) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    dtype = weight.get("dtype") if isinstance(weight, dict) else None
    return dtype if isinstance(dtype, str) else None
