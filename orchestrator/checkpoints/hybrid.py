"""Layers that are not plain attention, read from config.json as in sglang.

Linear attention and Mamba keep a state for each request; other kinds compress tokens or select blocks of tokens.
Source: sglang 0.5.23, `srt/configs/` and `srt/model_executor/pool_configurator.py`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from orchestrator.checkpoints.config import CONFIG, LAYER_TYPES, CheckpointConfig, ConfigFact
from orchestrator.engine.architectures import Hybrid

_LINEAR: Final = "kv_cache.linear"
_MAX_LAYERS: Final = 1024
Facts = dict[str, ConfigFact]


class MissingKeyError(Exception):
    """A key that config.json lacks."""


def read_hybrid(kind: Hybrid, config: CheckpointConfig) -> Facts:
    """Return the facts about such layers for a model's file. Raises MissingKeyError."""
    return _READERS[kind](config, min(_number(config.text, "num_hidden_layers"), _MAX_LAYERS))


def _gated_delta_net(config: CheckpointConfig, layers: int) -> Facts:
    """Read GDN (qwen3_next.py, `layers_block_type` and `mamba2_cache_params`; Qwen3.5 inherits them)."""
    text, interval = config.text, "full_attention_interval"
    every = _number(text, interval, 4)
    keys, values = _number(text, "linear_key_head_dim"), _number(text, "linear_value_head_dim")
    state = {
        "layers": sum((layer + 1) % every != 0 for layer in range(layers)),
        "key_heads": _number(text, "linear_num_key_heads"),
        "value_heads": _number(text, "linear_num_value_heads"),
        "head_dim": values,
        **({} if keys == values else {"key_dim": keys}),
        "conv_kernel": _number(text, "linear_conv_kernel_dim"),
    }
    return {_LINEAR: _fact(state, f"{interval}, linear_*")}


def _delta_attention(config: CheckpointConfig, layers: int) -> Facts:
    """Read KDA (kimi_linear.py, whose layers count from 1, and glm5_next.py: in four layers the last has attention)."""
    section = config.text.get("linear_attn_config")
    if isinstance(section, dict):
        kda_layers, names = section.get("kda_layers"), ("num_heads", "head_dim", "short_conv_kernel_size")
        linear, source = len(kda_layers) if isinstance(kda_layers, list) else 0, "linear_attn_config"
    else:
        section, layer_types = config.text, config.text.get(LAYER_TYPES)
        names, source = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"), f"{LAYER_TYPES}, linear_*"
        types = layer_types if isinstance(layer_types, list) else ["linear_attention"] * 3 + ["full_attention"]
        linear = sum(types[layer % len(types)] == "linear_attention" for layer in range(layers if types else 0))
    heads, width, kernel = (_number(section, name) for name in names)
    if not linear:
        raise MissingKeyError("kda_layers")
    state = {"layers": linear, "key_heads": heads, "value_heads": heads, "head_dim": width, "conv_kernel": kernel}
    facts = {_LINEAR: _fact(state, source)}
    if (pool := config.count("", "index_kpool")) is not None:
        facts["kv_cache.index_kpool"] = _fact(pool.value, pool.source)
    return facts


def _mamba(config: CheckpointConfig, _: int) -> Facts:
    """Read Mamba (nemotron_h.py): some layers have neither attention nor a state."""
    text = config.text
    layer_types: object = text.get("layers_block_type") or text.get("hybrid_override_pattern")
    kinds = [str(item) for item in layer_types] if isinstance(layer_types, list | str) else []
    attention = sum(kind in {"*", "attention"} for kind in kinds)
    if not attention:
        raise MissingKeyError("layers_block_type")
    state = {
        "layers": sum(kind in {"M", "mamba"} for kind in kinds),
        "key_heads": _number(text, "n_groups"),
        "value_heads": _number(text, "mamba_num_heads"),
        "head_dim": _number(text, "mamba_head_dim"),
        "key_dim": _number(text, "ssm_state_size"),
        "conv_kernel": _number(text, "conv_kernel"),
    }
    pattern = "layers_block_type" if "layers_block_type" in text else "hybrid_override_pattern"
    return {
        "kv_cache.attention_layers": _fact(attention, pattern),
        _LINEAR: _fact(state, f"{pattern}, mamba_*, n_groups, ssm_state_size"),
    }


def _compressed(config: CheckpointConfig, layers: int) -> Facts:
    """Read the ratios of DeepSeek-V4 (pool_configurator.py, `DSV4PoolConfigurator`); the draft's come last.

    In V4.1, only the layers in `kv_source_layer_ids` keep entries (`collect_sources_by_ratio`).
    """
    text = config.text
    ratios, sources = text.get("compress_ratios"), text.get("kv_source_layer_ids")
    if not isinstance(ratios, list):
        raise MissingKeyError("compress_ratios")
    ratios = ratios[:layers]
    if isinstance(sources, list) and sources:
        selected = [ratios[layer] for layer in sources if type(layer) is int and 0 <= layer < len(ratios)]
        counts = {f"ratio_{item}": selected.count(item) for item in (1, 2)}
    else:
        counts = {f"ratio_{item}": ratios.count(item) for item in (4, 128)}
    if not all(counts.values()):
        raise MissingKeyError("compress_ratios")
    section = {**counts, "window": _number(text, "sliding_window"), "rope_dim": _number(text, "qk_rope_head_dim")}
    return {
        "kv_cache.index_head_dim": _fact(_number(text, "index_head_dim"), "index_head_dim"),
        "kv_cache.compressed": _fact(section, "compress_ratios, sliding_window, qk_rope_head_dim"),
    }


def _blocks(config: CheckpointConfig, _: int) -> Facts:
    """Read the layers of MiniMax-M3 that select blocks (model_config.py, `get_minimax_sparse_layer_ids`)."""
    section = config.text.get("sparse_attention_config")
    frequencies = section.get("sparse_attention_freq") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(frequencies, list):
        raise MissingKeyError("sparse_attention_freq")
    return {
        "kv_cache.index_head_dim": _fact(_number(section, "sparse_index_dim"), "sparse_index_dim"),
        "kv_cache.index_layers": _fact(sum(item != 0 for item in frequencies), "sparse_attention_freq"),
    }


_READERS: Final[Mapping[Hybrid, Callable[[CheckpointConfig, int], Facts]]] = {
    "gdn": _gated_delta_net,
    "kda": _delta_attention,
    "mamba": _mamba,
    "compressed": _compressed,
    "blocks": _blocks,
}


def _number(section: Mapping[str, object], name: str, default: int = 0) -> int:
    value = section.get(name, default)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise MissingKeyError(name)
    return value


def _fact(value: object, source: str) -> ConfigFact:
    return ConfigFact(value=value, source=f"{CONFIG}: {source}")
