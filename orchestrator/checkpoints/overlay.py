"""Overlay of a checkpoint: a patched config.json, and links to all other files of the unchanged original."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG, LAYERS
from orchestrator.core.files import atomic_write, link, remove_tree, replace_folder
from orchestrator.patches.transforms import TRANSFORMS
from orchestrator.plan.plan import NO_DETECTED_PATCHES, DetectedPatches, Plan

_UNCHANGED: Final = "the engine's sources need no patched config; config.json is unchanged"


def overlay_path(plan: Plan, detected: DetectedPatches = NO_DETECTED_PATCHES) -> str | None:
    """Return the path of the patched config.json below `deploy`'s home; None without a config patch."""
    active = (patch for patch in plan.patches if patch.expected or patch.id in detected.ids)
    ids = [patch.id for patch in active if patch.kind == "config"]
    return f"overlays/{plan.model.name}/{'+'.join(ids)}/{CONFIG}" if ids else None


def write_overlay(directory: Path, overlay: Path, transforms: Sequence[str], *, linked: bool = True) -> str:
    """Write the overlay of a checkpoint with a transformed config.json; return the effect of the transforms.

    A server uses the whole overlay, or the original with `overlay/config.json` mounted over its own; the latter needs
    no links (`linked`). Replaces an older overlay atomically. Raises CheckpointError for an unreadable checkpoint.
    """
    checkpoint = Checkpoint.local(directory.absolute())
    config: Mapping[str, object] = checkpoint.config.data
    dtypes = _draft_dtypes(checkpoint) if transforms else {}
    reasons = []
    for name in transforms:
        result = TRANSFORMS[name](config, dtypes)
        config = result.config
        reasons.append(result.reason)
    overlay.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{overlay.name}-", dir=overlay.parent))
    try:
        for entry in directory.absolute().iterdir() if linked else ():
            if entry.name != CONFIG:
                link(temporary / entry.name, entry)
        atomic_write(temporary / CONFIG, json.dumps(config, indent=2) + "\n")
        temporary.chmod(0o755)
        replace_folder(temporary, overlay)
    finally:
        remove_tree(temporary, within=overlay.parent)
    return "; ".join(reasons) or _UNCHANGED


def _draft_dtypes(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the dtypes of the MTP layer's tensors by name. Raises CheckpointError for an unreadable header."""
    prefix = f"model.layers.{checkpoint.config.text.get(LAYERS)}."
    dtypes: dict[str, str] = {}
    for shard, names in sorted(checkpoint.shards.items()):
        if not names or any(name.startswith(prefix) for name in names):  # `names` is empty without an index
            dtypes |= {name: dtype for name, dtype in checkpoint.dtypes(shard).items() if name.startswith(prefix)}
    return dtypes
