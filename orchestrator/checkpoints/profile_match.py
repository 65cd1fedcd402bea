"""Check of a profile against its checkpoint's config.json."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG, DRAFTS, LAYERS, NAMES, SPARSE, CheckpointConfig
from orchestrator.core.errors import CheckpointError, CheckpointMismatchError, Problem
from orchestrator.engine.architectures import ARCHITECTURES
from orchestrator.plan.plan import Model

_UNQUANTIZED: Final = ("bf16", "fp16", "bfloat16", "float16")
_PREFIXES: Final = ("quark", "fp8")  # methods that are prefixes of a profile's `quantization`


def require_profile_match(directory: Path, model: Model) -> None:
    """Raise CheckpointMismatchError with every key of the profile that differs from the checkpoint's config.

    Keys missing from the config are not checked, nor is a missing or unreadable config.
    """
    try:
        config = Checkpoint.local(directory).config
    except CheckpointError:
        return  # the integrity check reports it
    if problems := tuple(_contradictions(config, model, str(directory / CONFIG))):
        raise CheckpointMismatchError(f"the profile and the checkpoint of `{model.name}` disagree", problems=problems)


def _contradictions(config: CheckpointConfig, model: Model, location: str) -> Iterator[Problem]:
    for key, expected, name, actual in (*_counts(config, model), *_features(config, model)):
        if actual != expected:
            hint = f"correct `model.{key}`; `deploy show PROFILE --explain` names its line"
            message = f"`model.{key}` is {_show(expected)}, the checkpoint's `{name}` is {_show(actual)}"
            yield Problem(message, location, hint)


_Fact = tuple[str, object, str, object]  # the profile's key and value, the config's


def _counts(config: CheckpointConfig, model: Model) -> Iterator[_Fact]:
    scaled = "factor" in config.rope  # a scaled context is not checked
    for key in NAMES:
        section, _, name = key.rpartition(".")
        if section == "kv_cache" or (key == "context_length" and scaled):
            continue
        expected = getattr(model.moe if section else model, name, None)
        if expected is not None and (count := config.count(key)) is not None:
            yield key, expected, count.source, count.value


def _features(config: CheckpointConfig, model: Model) -> Iterator[_Fact]:
    if model.architecture and (architecture := next(iter(config.architectures), "")):
        yield "architecture", model.architecture, "architectures", architecture
    if model.mtp_layer is not None and config.mtp_layers is not None:
        if config.mtp_layers == 0:
            yield "mtp_layer", model.mtp_layer, DRAFTS, 0
        else:  # the layer after the last one (sglang 0.5.14, srt/models/deepseek_nextn.py)
            yield "mtp_layer", model.mtp_layer, LAYERS, config.text.get(LAYERS, model.mtp_layer)
    kind = ARCHITECTURES.get(next(iter(config.architectures), ""))
    indexed = config.text.get(SPARSE) is not None and (kind is None or kind.sparse)  # DeepSeek-V4 has the key too
    if LAYERS in config.text and model.sparse_attention != indexed:
        yield "sparse_attention", model.sparse_attention, SPARSE, config.text.get(SPARSE)
    if (method := config.method) is not None:
        differs = method.value in _PREFIXES and not model.quantization.startswith(str(method.value))
        if differs or model.quantization in _UNQUANTIZED:
            yield "quantization", model.quantization, method.source, method.value


def _show(value: object) -> str:
    return "missing" if value is None else str(value).lower() if isinstance(value, bool) else f"`{value}`"
