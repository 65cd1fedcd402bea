"""The headers of the checkpoint to quantize."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.receipt import read_receipt
from orchestrator.checkpoints.safetensors import StoredTensor
from orchestrator.checkpoints.summary import CheckpointSummary, summarize
from orchestrator.core.errors import CheckpointError, UsageError
from orchestrator.core.safe_paths import CheckpointFile

FLOATS: Final = frozenset({"BF16", "F16", "F32"})


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint in a directory: the tensors and the bytes of each shard."""

    directory: Path
    summary: CheckpointSummary
    shards: Mapping[CheckpointFile, Mapping[str, StoredTensor]]
    sizes: Mapping[CheckpointFile, int]

    @property
    def layers(self) -> int:
        """The number of layers, excluding the MTP layers that follow them."""
        count = self.summary.config.count("layers")
        return count.number if count else 0

    @property
    def drafts(self) -> bool:
        """Whether the checkpoint has MTP layers."""
        return bool(self.summary.config.mtp_layers)

    @property
    def size(self) -> int:
        """The bytes of the shards."""
        return sum(self.sizes.values())

    @property
    def commit(self) -> str:
        """The checkpoint's hub commit from its receipt, else ""."""
        receipt = read_receipt(self.directory)
        return (receipt.revision if receipt else None) or ""


def read_source(directory: Path) -> Source:
    """Read config and headers.

    Raises CheckpointNotFoundError if there is no checkpoint, CheckpointError if it is incomplete, UsageError if Quark
    cannot read it: it is already quantized, or has shards in subdirectories.
    """
    checkpoint = Checkpoint.local(directory)
    summary = summarize(checkpoint)
    shards = {name: checkpoint.header(name) for name in sorted(checkpoint.shards)}
    if nested := [name for name in shards if "/" in name]:
        hint = "move the shards to the checkpoint's directory, and change its index"
        raise UsageError("Quark reads no shards in subdirectories", location=str(directory / nested[0]), hint=hint)
    _require_unquantized(directory, summary)
    if not summary.config.model_type or not summary.config.count("layers"):
        raise CheckpointError("no `model_type` or number of layers found", location=str(directory / CONFIG))
    sizes = {name: checkpoint.files.sizes[name] for name in shards}
    return Source(directory=directory, summary=summary, shards=shards, sizes=sizes)


def _require_unquantized(directory: Path, summary: CheckpointSummary) -> None:
    method, tensors = summary.config.method, summary.tensors.items()
    packed = [name for name, tensor in tensors if name.endswith(".weight") and tensor.dtype not in FLOATS]
    if method or packed:
        reason = f"`{method.value}` by its config" if method else f"`{packed[0]}` is {summary.tensors[packed[0]].dtype}"
        raise UsageError(
            f"the checkpoint is already quantized: {reason}",
            location=str(directory),
            hint="quantize the original BF16 checkpoint: `deploy quantize SOURCE TARGET --recipe RECIPE`",
        )
