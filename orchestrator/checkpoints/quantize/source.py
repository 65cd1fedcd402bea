"""The checkpoint to quantize: its headers by file, and whether Quark can read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.receipt import known_commit
from orchestrator.checkpoints.safetensors import StoredTensor
from orchestrator.checkpoints.summary import CheckpointSummary, summarize
from orchestrator.core.errors import CheckpointError, UsageError
from orchestrator.core.safe_paths import CheckpointFile

FLOATS: Final = frozenset({"BF16", "F16", "F32"})


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint in a directory. `shards` are the tensors of each file, `sizes` the bytes of each file."""

    directory: Path
    summary: CheckpointSummary
    shards: Mapping[CheckpointFile, Mapping[str, StoredTensor]]
    sizes: Mapping[CheckpointFile, int]

    @property
    def layers(self) -> int:
        """Return the number of layers, without draft layers, which are numbered after them."""
        found = self.summary.config.count("layers")
        return found.number if found else 0

    @property
    def drafts(self) -> bool:
        """Return whether the checkpoint has draft layers."""
        return bool(self.summary.config.mtp_layers)

    @property
    def size(self) -> int:
        """Return the bytes of the shards."""
        return sum(self.sizes.values())

    @cached_property
    def commit(self) -> str:
        """Return the hub commit of the checkpoint if its download recorded one, else ""."""
        return known_commit(self.directory) or ""


def read_source(directory: Path) -> Source:
    """Read config and headers.

    Raises CheckpointNotFoundError if there is no checkpoint, CheckpointError for an incomplete one, UsageError for one
    that is already quantized.
    """
    checkpoint = Checkpoint.local(directory)
    outline = summarize(checkpoint)
    shards = {name: checkpoint.header(name) for name in sorted(checkpoint.shards)}
    if inside := [name for name in shards if "/" in name]:
        raise UsageError("Quark reads no shards in folders of their own", location=str(directory / inside[0]))
    _require_floats(directory, outline, shards)
    if not outline.config.model_type or not outline.config.count("layers"):
        message = "its config says neither what kind of model it is nor how many layers it has"
        raise CheckpointError(message, location=str(directory / CONFIG))
    sizes = {name: checkpoint.files.sizes[name] for name in shards}
    return Source(directory=directory, summary=outline, shards=shards, sizes=sizes)


def _require_floats(
    directory: Path, outline: CheckpointSummary, shards: Mapping[CheckpointFile, Mapping[str, StoredTensor]]
) -> None:
    method = outline.config.method
    other = next(
        (
            f"`{name}` is stored as {tensor.dtype}"
            for tensors in shards.values()
            for name, tensor in tensors.items()
            if name.endswith(".weight") and tensor.dtype not in FLOATS
        ),
        "",
    )
    if method is None and not other:
        return
    raise UsageError(
        f"this checkpoint is quantized already: {f'its config says `{method.value}`' if method else other}",
        location=str(directory),
        hint="take the BF16 one that it was made from: Quark reads FP8 on a GPU with Triton alone, on a CPU it writes "
        "nothing and says so in its log; that way is not taken here",
    )
