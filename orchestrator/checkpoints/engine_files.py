"""The small files of a checkpoint that define the shape of its model for an engine."""

from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG, QUANT_CONFIG
from orchestrator.core.safe_paths import CheckpointFile

_NAMES: Final = (CONFIG, QUANT_CONFIG, CheckpointFile("generation_config.json"))
_MAX_BYTES: Final = 16 << 20  # of one file; Quark lists each excluded layer
_MAX_MODULES: Final = 32  # of a model with its own code


def read_engine_files(checkpoint: Checkpoint) -> dict[str, str] | None:
    """Read the files by name; None without a config.json. Raises CheckpointError, HostError."""
    sizes = checkpoint.files.sizes
    if CONFIG not in sizes:
        return None
    modules = sorted(name for name in sizes if name.endswith(".py") and "/" not in name)[:_MAX_MODULES]
    names = [name for name in (*_NAMES, *modules) if sizes.get(name, _MAX_BYTES + 1) <= _MAX_BYTES]
    return {name: checkpoint.read(name).decode(errors="replace") for name in names}
