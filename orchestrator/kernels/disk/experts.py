"""What the fusion rule needs of a checkpoint: the shape of its experts, and how shared and routed ones are stored."""

from collections.abc import Iterator
from contextlib import suppress

from orchestrator.checkpoints.checkpoint import SINGLE, Checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.core.errors import CheckpointError
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import Moe

_FIELDS = ("hidden_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "num_hidden_layers")


def read_experts(checkpoint: Checkpoint) -> MoeCheckpoint:
    """The experts of a checkpoint. Raises CheckpointError for one without a readable config of routed experts."""
    config = checkpoint.config
    sizes = {name: found.number for name in _FIELDS if (found := config.count(name, name)) is not None}
    if missing := [name for name in _FIELDS if name not in sizes]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise CheckpointError(f"no routed experts: {names} missing", where=f"{checkpoint.where}/{CONFIG}")
    shared, exclude = config.count("moe.shared_experts"), config.quantized.get("exclude")
    shared_dtype, routed_dtype = _expert_dtypes(checkpoint, sizes["num_hidden_layers"])
    return MoeCheckpoint(
        moe=Moe(
            hidden_size=sizes["hidden_size"],
            intermediate_size=sizes["moe_intermediate_size"],
            routed_experts=sizes["n_routed_experts"],
            shared_experts=shared.number if shared else 0,
            experts_per_token=sizes["num_experts_per_tok"],
        ),
        layers=sizes["num_hidden_layers"],
        draft_layers=config.drafts or 0,
        exclude=tuple(map(str, exclude)) if isinstance(exclude, list) else (),
        shared_dtype=shared_dtype,
        routed_dtype=routed_dtype,
    )


def _expert_dtypes(checkpoint: Checkpoint, layers: int) -> tuple[str | None, str | None]:
    """The dtypes of a shared and of a routed expert of one layer of the target model: one where they differ, if any.

    Nothing of a checkpoint whose headers are not here.
    """
    pairs = list(_pairs(checkpoint, layers))
    return next((pair for pair in pairs if None not in pair and pair[0] != pair[1]), (pairs or [(None, None)])[0])


def _pairs(checkpoint: Checkpoint, layers: int) -> Iterator[tuple[str | None, str | None]]:
    """The two of each layer that has routed experts."""
    for layer in range(layers):
        at = f"model.layers.{layer}.mlp"
        pair = tuple(_dtype(checkpoint, f"{at}.{kind}.gate_proj.weight") for kind in ("shared_experts", "experts.0"))
        if any(pair):
            yield pair[0], pair[1]


def _dtype(checkpoint: Checkpoint, tensor: str) -> str | None:
    """How a tensor is stored; None where its shard is not here or cannot be read."""
    with suppress(CheckpointError, KeyError):
        return checkpoint.dtypes(checkpoint.index.places.get(tensor, SINGLE))[tensor]
    return None
