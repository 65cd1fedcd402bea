"""What a checkpoint is made of: its config, its index, the headers of its shards. No tensor is read.

In a directory every header is read, and so every file is known to be whole. Of a repository on the hub they are read,
by range requests, as far as something follows from them.
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

_SHOWN: Final = 3  # tensor names in one message
LAYER: Final = re.compile(r"(?:(?:language_model|model|transformer)\.)*layers\.(\d+)\.(.+)")
# Tensors whose rows say what config.json says as well, by the end of their names. No way of packing changes the rows
# of a matrix that is called `weight`.
HEAD_ROWS: Final = "self_attn.k_proj.weight"
LATENT_ROWS: Final = "self_attn.kv_a_proj_with_mqa.weight"
INDEXER_ROWS: Final = "self_attn.indexer.wk.weight"
EXPERT_ROWS: Final = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight")
_CHECKED_ROWS: Final = frozenset({HEAD_ROWS, LATENT_ROWS, INDEXER_ROWS, *EXPERT_ROWS})


@dataclass(kw_only=True)
class CheckpointSummary:
    """A checkpoint without its tensors. Layers are counted by the numbers in the names of tensors."""

    location: str
    config: CheckpointConfig
    quantized: CheckpointConfig | None  # ModelOpt's own file
    shards: int
    weight_bytes: int
    layers: Counter[int] = field(default_factory=Counter)  # tensors of each
    layer_bytes: Counter[int] = field(default_factory=Counter)  # of those whose header was read
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)  # one tensor of each of the kinds above
    tensors: dict[str, StoredTensor] = field(default_factory=dict)  # of the headers that were read

    def count_layers(self, names: Iterable[str]) -> None:
        """Count the layers that tensors of these names are of."""
        self.layers.update(int(match[1]) for name in names if (match := LAYER.fullmatch(name)) is not None)

    def add_header(self, header: Mapping[str, StoredTensor]) -> None:
        """Take note of what a header says."""
        for name, tensor in header.items():
            self.tensors[name] = tensor
            if (match := LAYER.fullmatch(name)) is None:
                continue
            self.layer_bytes[int(match[1])] += tensor.size
            shape = tensor.shape
            if match[2] in _CHECKED_ROWS and len(shape) == 2 and shape[1] != 1:
                self.rows.setdefault(match[2], (name, shape[0]))


def local_summary(directory: Path) -> CheckpointSummary:
    """The outline of a checkpoint in a directory.

    Raises CheckpointNotFoundError where there is none, CheckpointError with everything that is wrong with it.
    """
    return summarize(Checkpoint.local(directory))


def hub_summary(repository: str, revision: str | None, hub: Hub) -> tuple[CheckpointSummary, Listing]:
    """The outline of a checkpoint on the hub, and its commit. Raises as `list_files`, CheckpointError as above."""
    try:
        listing = list_files(repository, revision, hub)
    except CheckpointError:
        raise
    except HostError as error:
        hint = "try again; `HF_ENDPOINT` names a mirror; or name a directory that holds the checkpoint"
        raise HostError(error.message, where=error.where, hint=hint) from error
    return summarize(Checkpoint(HubFiles(listing, hub))), listing


def summarize(checkpoint: Checkpoint) -> CheckpointSummary:
    """The outline of a checkpoint. Raises CheckpointError with everything that is wrong with it, HostError."""
    config, index, sizes = checkpoint.config, checkpoint.index, checkpoint.files.sizes
    outline = CheckpointSummary(
        location=checkpoint.location,
        config=config,
        quantized=checkpoint.quant_config,
        shards=len(index.shards),
        weight_bytes=sum(sizes.get(shard, 0) for shard in index.shards),
    )
    for names in index.shards.values():
        outline.count_layers(names)
    every = checkpoint.files.headers_are_cheap or not outline.layers
    wanted = {*index.shards} if every else _needed_shards(index, config)
    problems = list(index.problems)
    for shard, names in sorted(index.shards.items()):
        if shard in wanted or shard not in sizes:
            problems += _add_shard(checkpoint, shard, names, outline)
    if problems:
        raise CheckpointError(INCOMPLETE, where=checkpoint.location, problems=problems)
    return outline


def _needed_shards(index: CheckpointIndex, config: CheckpointConfig) -> set[CheckpointFile]:
    """The shards with the layers behind the last, and with one tensor of each kind that tells rows."""
    layers = config.count("layers")
    wanted: set[CheckpointFile] = set()
    missing = set(_CHECKED_ROWS)
    for shard, names in sorted(index.shards.items()):
        for match in filter(None, map(LAYER.fullmatch, names)):
            if match[2] in missing or (layers is not None and int(match[1]) >= layers.number):
                missing.discard(match[2])
                wanted.add(shard)
    return wanted


def _add_shard(
    checkpoint: Checkpoint, shard: CheckpointFile, named: set[str], outline: CheckpointSummary
) -> tuple[Problem, ...]:
    """Take note of a header, and say what is wrong with it."""
    try:
        header = checkpoint.header(shard)
    except CheckpointError as error:
        return error.each()
    outline.add_header(header)
    if not named:  # there is no index
        outline.count_layers(header)
    return tuple(missing_tensors(checkpoint, shard, named))


def missing_tensors(checkpoint: Checkpoint, shard: CheckpointFile, named: set[str]) -> Iterator[Problem]:
    """The tensors that the index names in a shard and its header does not."""
    if lost := sorted(named - checkpoint.header(shard).keys()):
        more = f", … ({len(lost) - _SHOWN} more)" if len(lost) > _SHOWN else ""
        names = ", ".join(f"`{name}`" for name in lost[:_SHOWN]) + more
        where = f"{checkpoint.location}/{shard}"
        yield Problem(f"`{shard}` lacks {len(lost)} tensors the index names: {names}", where)
