"""`deploy inspect DIR`: what a checkpoint holds, and in what it differs from its own config."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.checkpoints.config_check import Mismatch
from orchestrator.checkpoints.summary import local_summary
from orchestrator.checkpoints.verify import compare_with_config, is_fatal
from orchestrator.core.console import table
from orchestrator.core.errors import CheckpointMismatchError, Problem


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """A checkpoint in a directory: matrices of its decoder layers by projection and dtype; sizes are bytes."""

    directory: str
    architecture: str
    quantization: str
    shards: int
    weights: int
    tensors: int
    matrices: dict[str, dict[str, int]]
    mismatches: tuple[Mismatch, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON-able data."""
        return asdict(self)

    def to_text(self, *, width: int | None) -> str:
        """The same for people."""
        rows = [[kind, _listed(stored)] for kind, stored in sorted(self.matrices.items())]
        head = (
            f"{self.directory}: {self.architecture}, {self.quantization}, {self.shards} shards, "
            f"{self.tensors:,} tensors, {self.weights / 1e9:.1f} GB"
        )
        return f"{head}\n\n{table(['matrices of layers', 'stored as'], rows, width=width)}"

    def require(self) -> None:
        """Raise FactsError where it holds what no version of sglang loads, or loads rightly."""
        if fatal := [difference for difference in self.mismatches if is_fatal(difference, "")]:
            raise CheckpointMismatchError(
                "the tensors of this checkpoint are not what its config says",
                problems=tuple(Problem(each.message, self.directory, each.hint) for each in fatal),
            )


def view_checkpoint(directory: Path) -> CheckpointView:
    """Read config and headers. Raises NoWeightsError where there is none, WeightsError for one that is not whole."""
    outline = local_summary(directory)
    matrices: dict[str, Counter[str]] = {}
    for name, tensor in outline.tensors.items():
        module, _, leaf = name.rpartition(".")
        if ".layers." in module and leaf in {"weight", "qweight", "weight_packed"} and len(tensor.shape) > 1:
            matrices.setdefault(_kind(module), Counter())[tensor.dtype] += 1
    found = outline.config.quantization()
    return CheckpointView(
        directory=str(directory),
        architecture=next(iter(outline.config.architectures), "no architecture"),
        quantization=str(found.value) if found else "quantized in no way known here",
        shards=outline.shards,
        weights=outline.weight_bytes,
        tensors=len(outline.tensors),
        matrices={kind: dict(stored) for kind, stored in matrices.items()},
        mismatches=compare_with_config(outline, drafts=bool(outline.config.mtp_layers)),
    )


def _kind(module: str) -> str:
    """A module's name within its layer, without numbers."""
    return ".".join(part for part in module.partition(".layers.")[2].split(".") if not part.isdecimal())


def _listed(stored: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(stored.items()))
