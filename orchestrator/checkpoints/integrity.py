"""Integrity check of a checkpoint: config, tokenizer, index, every shard in the index, the MTP layer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.summary import missing_tensors
from orchestrator.core.errors import CheckpointError, Problem
from orchestrator.core.safe_paths import CheckpointFile
from orchestrator.core.text import parse_json

_TOKENIZERS: Final = tuple(
    tuple(map(CheckpointFile, names))
    for names in (("tokenizer.json",), ("tokenizer.model",), ("tiktoken.model",), ("vocab.json", "merges.txt"))
)


@dataclass(frozen=True, kw_only=True)
class IntegrityReport:
    """Result of an integrity check."""

    shards: int
    tensors: int
    problems: tuple[Problem, ...]


def check_integrity(
    checkpoint: Checkpoint, sizes: Mapping[CheckpointFile, int], *, mtp_layer: int | None
) -> IntegrityReport:
    """Check a checkpoint by its headers and metadata; report unreadable files as problems.

    `sizes` are the known bytes of files; `mtp_layer` is the index of the required MTP layer.
    """
    problems = list(_sizes(checkpoint, sizes))
    reported = {problem.location for problem in problems}  # one problem per file
    more = [*_readable(checkpoint, CONFIG), *_tokenizer(checkpoint)]
    problems += [problem for problem in more if problem.location not in reported]
    index = checkpoint.index
    problems += index.problems
    has_mtp = any(_is_of_mtp(name, mtp_layer) for names in index.shards.values() for name in names)
    tensors = 0
    for shard, names in sorted(index.shards.items()):
        try:
            header = checkpoint.header(shard)
        except CheckpointError as error:
            problems += [problem for problem in error.problems_or_self() if problem.location not in reported]
            continue
        tensors += len(header)
        has_mtp = has_mtp or any(_is_of_mtp(name, mtp_layer) for name in header)
        problems += missing_tensors(checkpoint, shard, names)
    if mtp_layer is not None and index.shards and not has_mtp:
        message = f"no tensor of the MTP layer (`model.layers.{mtp_layer}.`) found, which speculative decoding needs"
        hint = "use a revision of the checkpoint with the MTP layer, or serve without the `speculative-…` flags"
        problems.append(Problem(message, checkpoint.location, hint))
    return IntegrityReport(shards=len(index.shards), tensors=tensors, problems=tuple(problems))


def _is_of_mtp(name: str, layer: int | None) -> bool:
    """Return whether a tensor is of the MTP layer, which DeepSeek-V4 and Qwen3.5 name `mtp` instead of by index."""
    return name.startswith("mtp.") or f".layers.{layer}." in name


def _sizes(checkpoint: Checkpoint, sizes: Mapping[CheckpointFile, int]) -> Iterator[Problem]:
    for name, size in sorted(sizes.items()):
        location, found = f"{checkpoint.location}/{name}", checkpoint.files.sizes.get(name)
        if found is None:
            yield Problem(f"`{name}` is missing ({size} bytes)", location)
        elif found != size:
            yield Problem(f"`{name}` has {found} bytes instead of {size}", location)


def _tokenizer(checkpoint: Checkpoint) -> Iterator[Problem]:
    sizes = checkpoint.files.sizes
    tokenizer = next((names for names in _TOKENIZERS if all(name in sizes for name in names)), ())
    if not tokenizer:
        choices = ", ".join(" with ".join(f"`{name}`" for name in names) for names in _TOKENIZERS)
        yield Problem(f"no tokenizer found: none of {choices}", checkpoint.location)
    for name in tokenizer:
        if name.endswith(".json"):
            yield from _readable(checkpoint, name)
        elif sizes[name] == 0:
            yield Problem(f"`{name}` is empty", f"{checkpoint.location}/{name}")


def _readable(checkpoint: Checkpoint, name: CheckpointFile) -> Iterator[Problem]:
    location = f"{checkpoint.location}/{name}"
    if name not in checkpoint.files.sizes:
        yield Problem(f"`{name}` is missing", location)
        return
    try:
        parse_json(checkpoint.read(name))
    except ValueError:
        yield Problem(f"`{name}` is not JSON: the file is truncated or modified", location)
    except CheckpointError as error:
        yield from error.problems_or_self()
