"""`deploy inspect DIR`: the content of a checkpoint, and its mismatches with its config."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.mismatch import Mismatch, require_loadable
from orchestrator.checkpoints.summary import local_summary
from orchestrator.checkpoints.verify import compare_with_config
from orchestrator.core.console import table
from orchestrator.core.text import gb


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """Content of a checkpoint: matrices of its decoder layers by projection and dtype; sizes are bytes."""

    directory: str
    architecture: str
    quantization: str
    shards: int
    weights: int
    tensors: int
    matrices: dict[str, dict[str, int]]
    mismatches: tuple[Mismatch, ...]

    def to_text(self, *, width: int | None) -> str:
        """Format as a table."""
        rows = [
            [name, ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(counts.items()))]
            for name, counts in sorted(self.matrices.items())
        ]
        head = (
            f"{self.directory}: {self.architecture}, {self.quantization}, {self.shards} shards, "
            f"{self.tensors:,} tensors, {gb(self.weights)}"
        )
        return f"{head}\n\n{table(['matrices of layers', 'stored as'], rows, width=width)}"

    def require(self) -> None:
        """Raise CheckpointMismatchError if no version of sglang loads the checkpoint correctly."""
        message = f"the tensors of the checkpoint do not match its `{CONFIG}`"
        require_loadable(self.mismatches, message, location=self.directory)


def view_checkpoint(directory: Path) -> CheckpointView:
    """Read config and headers. Raises CheckpointNotFoundError if missing, CheckpointError if incomplete."""
    summary = local_summary(directory)
    matrices: dict[str, Counter[str]] = {}
    for name, tensor in summary.tensors.items():
        module, _, leaf = name.rpartition(".")
        if ".layers." in module and leaf in {"weight", "qweight", "weight_packed"} and len(tensor.shape) > 1:
            parts = module.partition(".layers.")[2].split(".")  # without indices of layers and experts
            in_layer = ".".join(part for part in parts if not part.isdecimal())
            matrices.setdefault(in_layer, Counter())[tensor.dtype] += 1
    quantization = summary.config.quantization()
    return CheckpointView(
        directory=str(directory),
        architecture=next(iter(summary.config.architectures), "no architecture"),
        quantization=str(quantization.value) if quantization else "unknown quantization",
        shards=summary.shards,
        weights=summary.weight_bytes,
        tensors=len(summary.tensors),
        matrices={name: dict(counts) for name, counts in matrices.items()},
        mismatches=compare_with_config(summary, drafts=bool(summary.config.mtp_layers)),
    )
