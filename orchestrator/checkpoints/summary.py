"""Summary of a checkpoint's config, index and shard headers, without tensors.

In a directory, all headers are read, which verifies that every file is complete. On the hub, only the needed headers
are read, with range requests.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import INCOMPLETE, Checkpoint, CheckpointIndex
from orchestrator.checkpoints.config import CheckpointConfig
from orchestrator.checkpoints.hub import Hub, HubFiles, Listing, list_files
from orchestrator.checkpoints.safetensors import StoredTensor
from orchestrator.core.errors import CheckpointError, HostError, Problem
from orchestrator.core.safe_paths import CheckpointFile

_MTP: Final = "mtp."
_MAX_EXAMPLES: Final = 3  # tensor names in one message
LAYER: Final = re.compile(r"(?:(?:language_model|model|transformer)\.)*layers\.(\d+)\.(.+)")
# Name endings of tensors whose number of rows follows from config.json. Packing never changes the rows of a matrix
# called `weight`.
HEAD_ROWS: Final = "self_attn.k_proj.weight"
LATENT_ROWS: Final = "self_attn.kv_a_proj_with_mqa.weight"
INDEXER_ROWS: Final = "self_attn.indexer.wk.weight"
EXPERT_ROWS: Final = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight")
_CHECKED_ROWS: Final = frozenset({HEAD_ROWS, LATENT_ROWS, INDEXER_ROWS, *EXPERT_ROWS})


@dataclass(kw_only=True)
class CheckpointSummary:
    """A checkpoint without its tensors. Layers are counted by the indices in tensor names."""

    location: str
    config: CheckpointConfig
    quantized: CheckpointConfig | None  # ModelOpt's config file
    shards: int
    weight_bytes: int
    has_shards: bool = True  # False: only config and index are present; no tensor was checked
    chat_template: str = ""
    layers: Counter[int] = field(default_factory=Counter)  # tensors by layer
    layer_bytes: Counter[int] = field(default_factory=Counter)  # bytes by layer, from the read headers
    separate_mtp: bool = False  # the MTP layer has no index: its tensors are named `mtp.` (Qwen3-Next, Qwen3.5)
    mtp_bytes: int = 0  # bytes of these tensors, from the read headers
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)  # for each ending above, one tensor: (name, rows)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)  # from the read headers

    def count_layers(self, names: Iterable[str]) -> None:
        """Count the layers in tensor names."""
        names = list(names)
        self.separate_mtp |= any(name.startswith(_MTP) for name in names)
        self.layers.update(int(match[1]) for name in names if (match := LAYER.fullmatch(name)) is not None)

    def add_header(self, header: Mapping[str, StoredTensor]) -> None:
        """Add the tensors of a header."""
        for name, tensor in header.items():
            self.tensors[name] = tensor
            self.mtp_bytes += tensor.size if name.startswith(_MTP) else 0
            if (match := LAYER.fullmatch(name)) is None:
                continue
            self.layer_bytes[int(match[1])] += tensor.size
            shape = tensor.shape
            if match[2] in _CHECKED_ROWS and len(shape) == 2 and shape[1] != 1:
                self.rows.setdefault(match[2], (name, shape[0]))


def local_summary(directory: Path, *, config_only: bool = False) -> CheckpointSummary:
    """Summarize a checkpoint in a directory; with `config_only`, shards may be missing.

    Raises CheckpointNotFoundError if it is missing, CheckpointError with all problems.
    """
    return summarize(Checkpoint.local(directory), config_only=config_only)


def hub_summary(repository: str, revision: str | None, hub: Hub) -> tuple[CheckpointSummary, Listing]:
    """Summarize a checkpoint on the hub; also return its listing. Raises as `list_files` and `local_summary`."""
    try:
        listing = list_files(repository, revision, hub)
    except CheckpointError:
        raise
    except HostError as error:
        hint = "try again; `HF_ENDPOINT` names a mirror; or name a directory with the checkpoint"
        raise HostError(error.message, location=error.location, hint=hint) from error
    return summarize(Checkpoint(HubFiles(listing, hub))), listing


def summarize(checkpoint: Checkpoint, *, config_only: bool = False) -> CheckpointSummary:
    """Summarize a checkpoint. Raises CheckpointError with all problems, HostError."""
    config, index, sizes = checkpoint.config, checkpoint.index, checkpoint.files.sizes
    has_shards = not config_only or any(shard in sizes for shard in index.shards)
    summary = CheckpointSummary(
        location=checkpoint.location,
        config=config,
        quantized=checkpoint.quant_config,
        shards=len(index.shards),
        weight_bytes=sum(sizes.get(shard, 0) for shard in index.shards) if has_shards else index.total_bytes,
        has_shards=has_shards,
        chat_template=checkpoint.chat_template,
    )
    for names in index.shards.values():
        summary.count_layers(names)
    read_all = checkpoint.files.headers_are_cheap or not summary.layers
    needed = {*index.shards} if read_all else _needed_shards(index, config)
    problems = list(index.problems)
    for shard, names in sorted(index.shards.items()) if has_shards else ():
        if shard in needed or shard not in sizes:
            problems += _add_shard(checkpoint, shard, names, summary)
    if problems:
        raise CheckpointError(INCOMPLETE, location=checkpoint.location, problems=problems)
    return summary


def _needed_shards(index: CheckpointIndex, config: CheckpointConfig) -> set[CheckpointFile]:
    """Return the shards with MTP layers, and with one tensor for each checked number of rows."""
    layers = config.count("layers")
    needed = {shard for shard, names in index.shards.items() if any(name.startswith(_MTP) for name in names)}
    missing = set(_CHECKED_ROWS)
    for shard, names in sorted(index.shards.items()):
        for match in filter(None, map(LAYER.fullmatch, names)):
            if match[2] in missing or (layers is not None and int(match[1]) >= layers.number):
                missing.discard(match[2])
                needed.add(shard)
    return needed


def _add_shard(
    checkpoint: Checkpoint, shard: CheckpointFile, names: set[str], summary: CheckpointSummary
) -> tuple[Problem, ...]:
    """Add a header to the summary; return its problems."""
    try:
        header = checkpoint.header(shard)
    except CheckpointError as error:
        return error.problems_or_self()
    summary.add_header(header)
    if not names:  # without an index
        summary.count_layers(header)
    return tuple(missing_tensors(checkpoint, shard, names))


def missing_tensors(checkpoint: Checkpoint, shard: CheckpointFile, names: set[str]) -> Iterator[Problem]:
    """Yield a problem if the shard lacks tensors of the index."""
    if missing := sorted(names - checkpoint.header(shard).keys()):
        examples = ", ".join(f"`{name}`" for name in missing[:_MAX_EXAMPLES])
        suffix = f", … ({len(missing) - _MAX_EXAMPLES} more)" if len(missing) > _MAX_EXAMPLES else ""
        location = f"{checkpoint.location}/{shard}"
        yield Problem(f"`{shard}` lacks {len(missing)} tensors of the index: {examples}{suffix}", location)
