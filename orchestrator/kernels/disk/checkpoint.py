"""What the fusion rule needs of a checkpoint on disk: config.json, and the dtypes of shared and routed experts."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from orchestrator.checkpoints.safetensors import BadShardError, tensor_dtypes
from orchestrator.core.errors import CheckpointError
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, join
from orchestrator.core.text import parse_json
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import Moe

_FIELDS = ("hidden_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "num_hidden_layers")


def read_checkpoint(folder: Path) -> MoeCheckpoint:
    """The checkpoint in `folder`. Raises WeightsError for one without a readable config of routed experts."""
    path = folder / "config.json"
    config = _json(path)
    missing = [name for name in _FIELDS if not isinstance(config.get(name), int)]
    if missing:
        raise CheckpointError(
            f"no routed experts: {', '.join(f'`{name}`' for name in missing)} missing", where=str(path)
        )
    size = {name: cast("int", config[name]) for name in _FIELDS}
    shared, routed = _expert_dtypes(folder, size["num_hidden_layers"])
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
        shared_dtype=shared,
        routed_dtype=routed,
    )


def _expert_dtypes(folder: Path, layers: int) -> tuple[str | None, str | None]:
    """The dtypes of a shared and of a routed expert of one layer of the target model: one where they differ, if any.

    Nothing of a checkpoint whose headers are not here.
    """
    pairs = list(_pairs(folder, layers))
    return next((pair for pair in pairs if None not in pair and pair[0] != pair[1]), (pairs or [(None, None)])[0])


def _pairs(folder: Path, layers: int) -> Iterator[tuple[str | None, str | None]]:
    """The two of each layer that has routed experts. Each header is read once."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    places = cast("dict[str, str]", _json(index).get("weight_map") or {}) if index.is_file() else None
    headers: dict[str, dict[str, str]] = {}

    def dtype(name: str) -> str | None:
        file = single.name if places is None else places.get(name)
        if file is None:
            return None
        if file not in headers:
            headers[file] = _dtypes(folder, file)
        return headers[file].get(name)

    for layer in range(layers):
        at = f"model.layers.{layer}.mlp"
        pair = (dtype(f"{at}.shared_experts.gate_proj.weight"), dtype(f"{at}.experts.0.gate_proj.weight"))
        if any(pair):
            yield pair


def _dtypes(folder: Path, file: str) -> dict[str, str]:
    try:
        return tensor_dtypes(join(folder, CheckpointFile(file)))
    except (OSError, BadShardError, UnsafeValueError):
        return {}


def _json(path: Path) -> dict[str, object]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"`{path.name}` cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise CheckpointError(f"`{path.name}` is not a mapping", where=str(path))
    return data
