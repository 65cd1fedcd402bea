"""The files of a checkpoint from which an engine learns the shape of its model: a few kilobytes, before the weights."""

from pathlib import Path
from typing import Final

from orchestrator.checkpoints.config import CONFIG, QUANT_CONFIG
from orchestrator.checkpoints.hub import Hub, list_files
from orchestrator.checkpoints.summary import CheckpointFiles, HubFiles, LocalFiles
from orchestrator.core.safe_paths import CheckpointFile
from orchestrator.plan.plan import Model

_NAMES: Final = (CONFIG, QUANT_CONFIG, CheckpointFile("generation_config.json"))
_MAX_BYTES: Final = 16 << 20  # of one file; Quark lists each layer that it leaves out
_MAX_MODULES: Final = 32  # of a model that brings its own code


def local_engine_files(directory: Path) -> dict[str, str] | None:
    """The texts by name; None for a directory without config.json. Raises HostError, OSError."""
    return _texts(LocalFiles(directory)) if (directory / CONFIG).is_file() else None


def hub_engine_files(model: Model, hub: Hub) -> dict[str, str] | None:
    """The same of a repository, without its weights. Raises WeightsError, HostError."""
    return _texts(HubFiles(list_files(model.source.location, model.source.revision, hub), hub))


def _texts(place: CheckpointFiles) -> dict[str, str] | None:
    if CONFIG not in place.sizes:
        return None
    modules = sorted(name for name in place.sizes if name.endswith(".py") and "/" not in name)[:_MAX_MODULES]
    names = [name for name in (*_NAMES, *modules) if place.sizes.get(name, _MAX_BYTES + 1) <= _MAX_BYTES]
    return {name: place.read(name, 0, place.sizes[name]).decode(errors="replace") for name in names}
