"""The overlay of a checkpoint: a patched config.json beside links to everything else. The original is never touched."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.integrity import INDEX
from orchestrator.checkpoints.safetensors import BadShardError, tensor_dtypes
from orchestrator.core.errors import CheckpointError
from orchestrator.core.files import atomic_write, link, move, remove_tree
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, join
from orchestrator.core.text import parse_json
from orchestrator.patches.transforms import TRANSFORMS
from orchestrator.plan.plan import AS_PLANNED, FoundPatches, Plan

_TELLING: Final = (".mlp.shared_experts.gate_proj.weight", ".mlp.experts.0.gate_proj.weight")
_UNCHANGED: Final = "the engine's sources do it themselves; the config is left as it is"


def overlay_path(plan: Plan, found: FoundPatches = AS_PLANNED) -> str | None:
    """Where the patched config.json lies, relative to the tool's home directory; None without a config patch."""
    acting = (patch for patch in plan.patches if patch.expected or patch.id in found.ids)
    ids = [patch.id for patch in acting if patch.kind == "config"]
    return f"overlays/{plan.model.name}/{'+'.join(ids)}/config.json" if ids else None


def write_overlay(checkpoint: Path, overlay: Path, transforms: Sequence[str], *, linked: bool = True) -> str:
    """Make `overlay` the checkpoint with a config.json that went through these transforms, and say what they did.

    A server is given the whole directory, or the original with `overlay/config.json` mounted over its own; for that
    alone it needs not be `linked` to the rest. It is made beside an older one and then takes its place. Raises
    WeightsError for a checkpoint that cannot be read.
    """
    checkpoint = checkpoint.absolute()
    config: Mapping[str, object] = _read_json(checkpoint / "config.json")
    dtypes = layer_dtypes(checkpoint, _draft_layer(config)) if transforms else {}
    reasons = []
    for name in transforms:
        made = TRANSFORMS[name](config, dtypes)
        config = made.config
        reasons.append(made.reason)
    overlay.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{overlay.name}-", dir=overlay.parent))
    try:
        for entry in checkpoint.iterdir() if linked else ():
            if entry.name != "config.json":
                link(fresh / entry.name, entry)
        atomic_write(fresh / "config.json", json.dumps(config, indent=2) + "\n")
        fresh.chmod(0o755)
        _replace(fresh, overlay)
    finally:
        remove_tree(fresh, within=overlay.parent)
    return "; ".join(reasons) or _UNCHANGED


def layer_dtypes(checkpoint: Path, prefix: str) -> dict[str, str]:
    """dtypes by tensor name (`BF16`, `U8`, …) of the tensors that begin with `prefix`, from the safetensors headers."""
    return {
        name: dtype
        for shard in _shards(checkpoint, prefix)
        for name, dtype in _dtypes(checkpoint, shard).items()
        if name.startswith(prefix)
    }


def telling_shards(checkpoint: Path) -> list[CheckpointFile]:
    """The files whose headers are asked for: those of the MTP layer, and one of each layer's shared and routed experts.

    A transform of the config is told of the first, what decides whether experts are fused of the others.
    """
    drafts = _shards(checkpoint, _draft_layer(_read_json(checkpoint / "config.json")))
    return sorted({*drafts, *_shards(checkpoint, "model.layers.", _TELLING)})


def _draft_layer(config: Mapping[str, object]) -> str:
    """How the names of the MTP layer's tensors begin."""
    return f"model.layers.{config.get('num_hidden_layers')}."


def _shards(checkpoint: Path, prefix: str, endings: tuple[str, ...] = ("",)) -> list[CheckpointFile]:
    """The files that hold such tensors, by the index; without one, every shard."""
    index = checkpoint / INDEX
    if not index.is_file():
        return sorted(CheckpointFile(path.name) for path in checkpoint.glob("*.safetensors"))
    places = _read_json(index).get("weight_map")
    if not isinstance(places, Mapping):
        raise CheckpointError("the index has no `weight_map`", where=str(index))
    try:
        return sorted(
            {
                CheckpointFile(file)
                for name, file in places.items()
                if name.startswith(prefix) and name.endswith(endings)
            }
        )
    except UnsafeValueError as error:
        raise CheckpointError(
            "the index names a file outside the checkpoint", where=str(index), details=str(error)
        ) from error


def _dtypes(checkpoint: Path, shard: CheckpointFile) -> dict[str, str]:
    try:
        return tensor_dtypes(join(checkpoint, shard))
    except (OSError, BadShardError, UnsafeValueError) as error:
        raise CheckpointError(f"the header cannot be read: {error}", where=str(checkpoint / shard)) from error


def _read_json(path: Path) -> dict[str, object]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"this is not a checkpoint: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise CheckpointError("expected a JSON object", where=str(path))
    return data


def _replace(fresh: Path, overlay: Path) -> None:
    """Put `fresh` at `overlay`; a directory that stands there goes first, out of the way and then for good."""
    if overlay.is_dir():
        old = fresh.with_name(f"{fresh.name}.old")
        move(overlay, old)
        remove_tree(old, within=overlay.parent)
    move(fresh, overlay)
