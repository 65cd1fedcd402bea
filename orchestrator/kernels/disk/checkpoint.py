"""What the fusion rule needs of a checkpoint on disk: config.json, and the dtype of one shared expert."""

from contextlib import suppress
from pathlib import Path
from typing import cast

from orchestrator.core.errors import WeightsError
from orchestrator.core.text import parse_json
from orchestrator.kernels.fusion import MoeCheckpoint
from orchestrator.plan import Moe
from orchestrator.weights import BadShardError, tensor_dtypes

_FIELDS = ("hidden_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "num_hidden_layers")


def read_checkpoint(folder: Path) -> MoeCheckpoint:
    """The checkpoint in `folder`. Raises WeightsError for one without a readable config of routed experts."""
    path = folder / "config.json"
    config = _json(path)
    missing = [name for name in _FIELDS if not isinstance(config.get(name), int)]
    if missing:
        raise WeightsError(f"no routed experts: {', '.join(f'`{name}`' for name in missing)} missing", where=str(path))
    size = {name: cast("int", config[name]) for name in _FIELDS}
    quantisation = cast("dict[str, object]", config.get("quantization_config") or {})
    return MoeCheckpoint(
        moe=Moe(
            hidden_size=size["hidden_size"],
            intermediate_size=size["moe_intermediate_size"],
            routed_experts=size["n_routed_experts"],
            shared_experts=cast("int", config.get("n_shared_experts") or 0),
            experts_per_token=size["num_experts_per_tok"],
        ),
        layers=size["num_hidden_layers"],
        draft_layers=cast("int", config.get("num_nextn_predict_layers") or 0),
        exclude=tuple(str(entry) for entry in cast("list[object]", quantisation.get("exclude") or [])),
        shared_dtype=_shared_dtype(folder, size["num_hidden_layers"]),
    )


def _shared_dtype(folder: Path, layers: int) -> str | None:
    """The dtype of a shared expert of the target model as its safetensors header gives it; None without weights."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return None
    files = cast("dict[str, str]", _json(index).get("weight_map") or {})
    for layer in range(layers):
        name = f"model.layers.{layer}.mlp.shared_experts.gate_proj.weight"
        if name in files:
            with suppress(OSError, BadShardError):
                return tensor_dtypes(folder / files[name]).get(name)
    return None


def _json(path: Path) -> dict[str, object]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"`{path.name}` cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise WeightsError(f"`{path.name}` is not a mapping", where=str(path))
    return data
