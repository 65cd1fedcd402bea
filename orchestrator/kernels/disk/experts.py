"""Experts of a checkpoint: their shape, and the storage of shared and routed experts, for the fusion rule."""

from collections.abc import Iterator
from contextlib import suppress

from orchestrator.checkpoints.checkpoint import SINGLE, Checkpoint
from orchestrator.checkpoints.config import CONFIG, NAMES
from orchestrator.core.errors import CheckpointError
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import Moe

_FIELDS = ("moe.hidden_size", "moe.intermediate_size", "moe.routed_experts", "moe.experts_per_token", "layers")


def read_experts(checkpoint: Checkpoint) -> MoeCheckpoint:
    """Read the experts of a checkpoint. Raises CheckpointError without a readable config of routed experts."""
    config = checkpoint.config
    sizes = {name: fact.number for name in _FIELDS if (fact := config.count(name)) is not None}
    if missing := [name for name in _FIELDS if name not in sizes]:
        names = ", ".join(f"`{NAMES[name][0]}`" for name in missing)
        raise CheckpointError(f"no routed experts found: {names} missing", location=f"{checkpoint.location}/{CONFIG}")
    shared, exclude = config.count("moe.shared_experts"), config.quantized.get("exclude")
    shared_dtype, routed_dtype = _expert_dtypes(checkpoint, sizes["layers"])
    return MoeCheckpoint(
        moe=Moe(
            hidden_size=sizes["moe.hidden_size"],
            intermediate_size=sizes["moe.intermediate_size"],
            routed_experts=sizes["moe.routed_experts"],
            shared_experts=shared.number if shared else 0,
            experts_per_token=sizes["moe.experts_per_token"],
        ),
        layers=sizes["layers"],
        draft_layers=config.mtp_layers or 0,
        exclude=tuple(map(str, exclude)) if isinstance(exclude, list) else (),
        shared_dtype=shared_dtype,
        routed_dtype=routed_dtype,
    )


def _expert_dtypes(checkpoint: Checkpoint, layers: int) -> tuple[str | None, str | None]:
    """Return the dtypes of a shared and a routed expert, preferably from a layer where they differ.

    (None, None) without headers.
    """
    pairs = list(_pairs(checkpoint, layers))
    return next((pair for pair in pairs if None not in pair and pair[0] != pair[1]), (pairs or [(None, None)])[0])


def _pairs(checkpoint: Checkpoint, layers: int) -> Iterator[tuple[str | None, str | None]]:
    """Yield both dtypes of each layer with experts."""
    for layer in range(layers):
        prefix = f"model.layers.{layer}.mlp"
        pair = tuple(
            _dtype(checkpoint, f"{prefix}.{expert}.gate_proj.weight") for expert in ("shared_experts", "experts.0")
        )
        if any(pair):
            yield pair[0], pair[1]


def _dtype(checkpoint: Checkpoint, tensor: str) -> str | None:
    """Return the dtype of a tensor; None if its shard is missing or unreadable."""
    with suppress(CheckpointError, KeyError):
        return checkpoint.dtypes(checkpoint.index.shard_by_tensor.get(tensor, SINGLE))[tensor]
    return None
