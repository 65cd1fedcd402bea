"""What makes a checkpoint whole: configuration, tokenizer, index, every shard the index names, the MTP layer."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from orchestrator.checkpoints.safetensors import BadShardError, StoredTensor, stored_tensors
from orchestrator.core.errors import Problem
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, display, join
from orchestrator.core.text import parse_json

INDEX: Final = CheckpointFile("model.safetensors.index.json")
SINGLE: Final = CheckpointFile("model.safetensors")

_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("tiktoken.model",), ("vocab.json", "merges.txt"))
_SHOWN = 3  # tensor names in one message

# The weight files, each with the tensors that the index places in it, and what is wrong with the index.
Placed: TypeAlias = tuple[Mapping[CheckpointFile, set[str]], list[Problem]]


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


def check_integrity(
    directory: Path, wanted: IntegritySpec, take: Callable[[Mapping[str, StoredTensor]], object]
) -> IntegrityReport:
    """Look at a checkpoint; reads headers and metadata only, and says of a file that cannot be read what is wrong.

    Each header that was read is given to `take`.
    """
    problems = list(_sizes(directory, wanted.sizes))
    named_already = {problem.where for problem in problems}  # once a file is said to be wrong, that is enough
    more = (*_readable(directory / "config.json"), *_tokenizer(directory))
    problems += [problem for problem in more if problem.where not in named_already]
    shards, faults = _shards(directory)
    problems += faults
    drafts = any(_of_layer(name, wanted.mtp_layer) for named in shards.values() for name in named)
    tensors = 0
    for shard, named in sorted(shards.items()):
        where = str(directory / shard)
        try:
            header = stored_tensors(join(directory, shard))
        except (BadShardError, UnsafeValueError, OSError) as error:
            if where not in named_already:
                problems.append(unreadable(shard, where, error))
            continue
        take(header)
        tensors += len(header)
        drafts = drafts or any(_of_layer(name, wanted.mtp_layer) for name in header)
        if lost := sorted(named - header.keys()):
            problems.append(Problem(f"`{shard}` lacks {len(lost)} tensors the index names: {_some(lost)}", where))
    if wanted.mtp_layer is not None and shards and not drafts:
        problems.append(_no_mtp(directory, wanted.mtp_layer))
    return IntegrityReport(shards=len(shards), tensors=tensors, problems=tuple(problems))


def _sizes(directory: Path, sizes: Mapping[CheckpointFile, int]) -> Iterator[Problem]:
    for name, size in sorted(sizes.items()):
        path = directory / name
        found = path.stat().st_size if path.is_file() else None
        if found is None:
            yield Problem(f"`{name}` is missing ({size} bytes)", str(path))
        elif found != size:
            yield Problem(f"`{name}` has {found} bytes instead of {size}", str(path))


def _tokenizer(directory: Path) -> Iterator[Problem]:
    whole = [names for names in _TOKENIZERS if all((directory / CheckpointFile(name)).is_file() for name in names)]
    if not whole:
        choices = ", ".join(" with ".join(f"`{name}`" for name in names) for names in _TOKENIZERS)
        yield Problem(f"there is no tokenizer: none of {choices}", str(directory))
    for name in whole[0] if whole else ():
        path = directory / CheckpointFile(name)
        if path.suffix == ".json":
            yield from _readable(path)
        elif path.stat().st_size == 0:
            yield Problem(f"`{name}` is empty", str(path))


def _readable(path: Path) -> Iterator[Problem]:
    if not path.is_file():
        yield Problem(f"`{path.name}` is missing", str(path))
        return
    try:
        parse_json(path.read_bytes())
    except ValueError:
        yield Problem(f"`{path.name}` is not JSON: it was cut off or altered", str(path))
    except OSError as error:
        yield Problem(f"`{path.name}` cannot be read: {error.strerror}", str(path))


def _shards(directory: Path) -> Placed:
    """The weight files, each with the tensors the index places in it; without an index there must be a single one."""
    path = directory / INDEX
    try:
        content = path.read_bytes() if path.is_file() else None
    except OSError:
        content = b""
    return placed_tensors(content, single=(directory / SINGLE).is_file(), where=str(directory))


def placed_tensors(content: bytes | None, *, single: bool, where: str) -> Placed:
    """The weight files that an index of this `content` names, each with its tensors, and what is wrong with it.

    Without an index (None) there must be a `single` file. `where` is the checkpoint.
    """
    if content is None:
        if single:
            return {SINGLE: set()}, []
        return {}, [Problem(f"there are no weights: neither `{INDEX}` nor `{SINGLE}`", where)]
    where = f"{where}/{INDEX}"
    try:
        weights = parse_json(content)["weight_map"]
        places = [(str(name), shard) for name, shard in weights.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, [Problem(f"`{INDEX}` is not an index that can be read: it was cut off or altered", where)]
    if not places:
        return {}, [Problem(f"`{INDEX}` names no tensor", where)]
    shards: dict[CheckpointFile, set[str]] = defaultdict(set)
    problems: dict[str, Problem] = {}
    for name, shard in places:
        try:
            shards[CheckpointFile(shard)].add(name)
        except UnsafeValueError:
            problems.setdefault(
                display(shard), Problem(f"`{INDEX}` names a file outside the checkpoint: `{display(shard)}`", where)
            )
    return shards, list(problems.values())


def unreadable(shard: str, where: str, error: Exception) -> Problem:
    """Why the header of a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return Problem(f"`{shard}` is missing", where)
    return Problem(f"`{shard}` {error}" if isinstance(error, BadShardError) else f"`{shard}`: {error}", where)


def _of_layer(name: str, layer: int | None) -> bool:
    return layer is not None and name.startswith(f"model.layers.{layer}.")


def _no_mtp(directory: Path, layer: int) -> Problem:
    return Problem(
        f"there is no tensor of the MTP layer (`model.layers.{layer}.`), which speculation needs",
        str(directory),
        "take a revision of the checkpoint that has it, or serve without the `speculative-…` flags",
    )


def _some(names: list[str]) -> str:
    more = f", … ({len(names) - _SHOWN} more)" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more
