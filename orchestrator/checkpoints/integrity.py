"""What makes a checkpoint whole: configuration, tokenizer, index, every shard the index names, the MTP layer."""

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
class IntegritySpec:
    """What a checkpoint must show: sizes in bytes by relative path where they are known, and the MTP layer."""

    sizes: Mapping[CheckpointFile, int]
    mtp_layer: int | None


@dataclass(frozen=True, kw_only=True)
class IntegrityReport:
    """What was looked at, and everything that is wrong with it."""

    shards: int
    tensors: int
    problems: tuple[Problem, ...]


def check_integrity(checkpoint: Checkpoint, spec: IntegritySpec) -> IntegrityReport:
    """Look at a checkpoint; reads headers and metadata only, and says of a file that cannot be read what is wrong."""
    problems = list(_sizes(checkpoint, spec.sizes))
    named_already = {problem.where for problem in problems}  # once a file is said to be wrong, that is enough
    more = [*_readable(checkpoint, CONFIG), *_tokenizer(checkpoint)]
    problems += [problem for problem in more if problem.where not in named_already]
    index = checkpoint.index
    problems += index.problems
    drafts = any(_of_layer(name, spec.mtp_layer) for named in index.shards.values() for name in named)
    tensors = 0
    for shard, named in sorted(index.shards.items()):
        try:
            header = checkpoint.header(shard)
        except CheckpointError as error:
            problems += [problem for problem in error.each() if problem.where not in named_already]
            continue
        tensors += len(header)
        drafts = drafts or any(_of_layer(name, spec.mtp_layer) for name in header)
        problems += missing_tensors(checkpoint, shard, named)
    if spec.mtp_layer is not None and index.shards and not drafts:
        problems.append(_no_mtp(checkpoint.location, spec.mtp_layer))
    return IntegrityReport(shards=len(index.shards), tensors=tensors, problems=tuple(problems))


def _sizes(checkpoint: Checkpoint, sizes: Mapping[CheckpointFile, int]) -> Iterator[Problem]:
    for name, size in sorted(sizes.items()):
        where, found = f"{checkpoint.location}/{name}", checkpoint.files.sizes.get(name)
        if found is None:
            yield Problem(f"`{name}` is missing ({size} bytes)", where)
        elif found != size:
            yield Problem(f"`{name}` has {found} bytes instead of {size}", where)


def _tokenizer(checkpoint: Checkpoint) -> Iterator[Problem]:
    sizes = checkpoint.files.sizes
    whole = [names for names in _TOKENIZERS if all(name in sizes for name in names)]
    if not whole:
        choices = ", ".join(" with ".join(f"`{name}`" for name in names) for names in _TOKENIZERS)
        yield Problem(f"there is no tokenizer: none of {choices}", checkpoint.location)
    for name in whole[0] if whole else ():
        if name.endswith(".json"):
            yield from _readable(checkpoint, name)
        elif sizes[name] == 0:
            yield Problem(f"`{name}` is empty", f"{checkpoint.location}/{name}")


def _readable(checkpoint: Checkpoint, name: CheckpointFile) -> Iterator[Problem]:
    where = f"{checkpoint.location}/{name}"
    if name not in checkpoint.files.sizes:
        yield Problem(f"`{name}` is missing", where)
        return
    try:
        parse_json(checkpoint.read(name))
    except ValueError:
        yield Problem(f"`{name}` is not JSON: it was cut off or altered", where)
    except CheckpointError as error:
        yield from error.each()


def _of_layer(name: str, layer: int | None) -> bool:
    return layer is not None and name.startswith(f"model.layers.{layer}.")


def _no_mtp(where: str, layer: int) -> Problem:
    return Problem(
        f"there is no tensor of the MTP layer (`model.layers.{layer}.`), which speculation needs",
        where,
        "take a revision of the checkpoint that has it, or serve without the `speculative-…` flags",
    )
