"""The overlay of a checkpoint: a patched config.json beside links to everything else. The original is never touched."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG, LAYERS
from orchestrator.core.files import atomic_write, link, remove_tree, replace_folder
from orchestrator.patches.transforms import TRANSFORMS
from orchestrator.plan.plan import AS_PLANNED, FoundPatches, Plan

_UNCHANGED: Final = "the engine's sources do it themselves; the config is left as it is"


def overlay_path(plan: Plan, found: FoundPatches = AS_PLANNED) -> str | None:
    """Where the patched config.json lies, relative to the tool's home directory; None without a config patch."""
    acting = (patch for patch in plan.patches if patch.expected or patch.id in found.ids)
    ids = [patch.id for patch in acting if patch.kind == "config"]
    return f"overlays/{plan.model.name}/{'+'.join(ids)}/{CONFIG}" if ids else None


def write_overlay(directory: Path, overlay: Path, transforms: Sequence[str], *, linked: bool = True) -> str:
    """Make `overlay` the checkpoint of a directory with a transformed config.json, and say what the transforms did.

    A server is given the whole directory, or the original with `overlay/config.json` mounted over its own; for that
    alone it needs not be `linked` to the rest. It is made beside an older one and then takes its place. Raises
    CheckpointError for a checkpoint that cannot be read.
    """
    checkpoint = Checkpoint.local(directory.absolute())
    config: Mapping[str, object] = checkpoint.config.data
    dtypes = _draft_dtypes(checkpoint) if transforms else {}
    reasons = []
    for name in transforms:
        made = TRANSFORMS[name](config, dtypes)
        config = made.config
        reasons.append(made.reason)
    overlay.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{overlay.name}-", dir=overlay.parent))
    try:
        for entry in directory.absolute().iterdir() if linked else ():
            if entry.name != CONFIG:
                link(fresh / entry.name, entry)
        atomic_write(fresh / CONFIG, json.dumps(config, indent=2) + "\n")
        fresh.chmod(0o755)
        replace_folder(fresh, overlay)
    finally:
        remove_tree(fresh, within=overlay.parent)
    return "; ".join(reasons) or _UNCHANGED


def _draft_dtypes(checkpoint: Checkpoint) -> dict[str, str]:
    """The dtypes of the MTP layer's tensors, by name. Raises CheckpointError for a header that cannot be read."""
    prefix = f"model.layers.{checkpoint.config.text.get(LAYERS)}."
    return {
        name: dtype
        for shard, names in sorted(checkpoint.shards.items())
        if not names or any(name.startswith(prefix) for name in names)  # without an index nothing is known of a shard
        for name, dtype in checkpoint.dtypes(shard).items()
        if name.startswith(prefix)
    }
