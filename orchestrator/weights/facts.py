"""Facts of a profile, held against the checkpoint's own config.json."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from orchestrator.core.errors import FactsError, Problem
from orchestrator.core.text import parse_json
from orchestrator.plan import Model

CONFIG: Final = "config.json"
_TEXT: Final = ("text_config", "llm_config", "language_config")  # where models of several kinds of input keep these
_LAYERS: Final = "num_hidden_layers"
_DRAFTS: Final = "num_nextn_predict_layers"
_SPARSE: Final = "index_topk"  # sglang 0.5.14, srt/configs/model_config.py, is_deepseek_dsa
# sglang 0.5.14, srt/utils/hf_transformers/common.py, CONTEXT_LENGTH_KEYS, in this order
_CONTEXT: Final = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_MOE: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("moe_intermediate_size",),
    "routed_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "shared_experts": ("n_shared_experts",),
    "experts_per_token": ("num_experts_per_tok",),
}
_PLAIN: Final = ("bf16", "fp16", "bfloat16", "float16")
_SAYS_ITS_NAME: Final = ("quark", "fp8")  # a profile's word begins with the method's; others have several


def require_facts(directory: Path, model: Model) -> None:
    """Raise FactsError with every fact of the profile that the checkpoint's config contradicts.

    What the config does not say is not judged, nor one that is missing or cannot be read.
    """
    path = directory / CONFIG
    try:
        config = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return  # `inspect` says so
    problems = tuple(_contradictions(config, model, str(path))) if isinstance(config, dict) else ()
    if problems:
        raise FactsError(
            f"the profile says of `{model.name}` what its checkpoint contradicts",
            problems=problems,
        )


def _contradictions(config: Mapping[str, object], model: Model, where: str) -> Iterator[Problem]:
    text = {**config, **_text(config)}
    for key, said, name, found in (*_counts(text, model), *_kinds(text, model)):
        if found != said:
            hint = f"correct `model.{key}`; `deploy show PROFILE --explain` names the line it is written at"
            if key == "context_length":
                shorter = isinstance(found, int) and model.context_length < found
                served = f" --set flags.context-length={said}` serves less than the model can" if shorter else "`"
                hint = f"`--set model.context_length={found}{served}; or {hint}"
            yield Problem(f"`model.{key}` is {_show(said)}, the checkpoint's `{name}` is {_show(found)}", where, hint)


def _text(config: Mapping[str, object]) -> Mapping[str, object]:
    return next((inner for name in _TEXT if isinstance(inner := config.get(name), dict)), {})


_Fact = tuple[str, object, str, object]  # the profile's key and value, the config's


def _counts(config: Mapping[str, object], model: Model) -> Iterator[_Fact]:
    said: dict[str, tuple[int | None, tuple[str, ...]]] = {
        "layers": (model.layers, (_LAYERS,)),
        "attention_heads": (model.attention_heads, ("num_attention_heads",)),
        "kv_heads": (model.kv_heads, ("num_key_value_heads",)),
    }
    if not _is_scaled(config):
        said["context_length"] = (model.context_length, _CONTEXT)
    for key, names in _MOE.items() if model.moe else ():
        said[f"moe.{key}"] = (getattr(model.moe, key), names)
    for key, (value, names) in said.items():
        name = next((name for name in names if isinstance(config.get(name), int)), None)
        if value is not None and name is not None:
            yield key, value, name, config[name]


def _kinds(config: Mapping[str, object], model: Model) -> Iterator[_Fact]:
    if model.mtp_layer is not None and isinstance(drafts := config.get(_DRAFTS), int):
        if drafts == 0:
            yield "mtp_layer", model.mtp_layer, _DRAFTS, 0
        else:  # the layer behind the last one (sglang 0.5.14, srt/models/deepseek_nextn.py)
            yield "mtp_layer", model.mtp_layer, _LAYERS, config.get(_LAYERS, model.mtp_layer)
    if _LAYERS in config and model.sparse_attention != (config.get(_SPARSE) is not None):
        yield "sparse_attention", model.sparse_attention, _SPARSE, config.get(_SPARSE)
    method = _method(config)
    named = method in _SAYS_ITS_NAME and not model.quantisation.startswith(str(method))
    if method is not None and (named or model.quantisation in _PLAIN):
        yield "quantisation", model.quantisation, "quantization_config.quant_method", method


def _method(config: Mapping[str, object]) -> str | None:
    given = config.get("quantization_config")
    return str(given.get("quant_method")) if isinstance(given, dict) and given.get("quant_method") else None


def _is_scaled(config: Mapping[str, object]) -> bool:
    """Whether positions are scaled: each version of sglang has its own rule of what is left of them."""
    given = config.get("rope_scaling") or config.get("rope_parameters")
    return isinstance(given, dict) and "factor" in given


def _show(value: object) -> str:
    return "not there" if value is None else str(value).lower() if isinstance(value, bool) else f"`{value}`"
