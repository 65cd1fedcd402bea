"""What a checkpoint is made of: its config, its index, the headers of its shards. No tensor is read.

In a directory every header is read, and so every file is known to be whole. Of a repository on the hub they are read,
by range requests, as far as something follows from them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from orchestrator.checkpoints.config import CONFIG, QUANT_CONFIG, CheckpointConfig
from orchestrator.checkpoints.hub import Hub, Listing, file_address, list_files
from orchestrator.checkpoints.integrity import INDEX, SINGLE, Placed, placed_tensors, unreadable
from orchestrator.checkpoints.safetensors import BadShardError, StoredTensor, whole_header
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError, HostError, Problem
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError

_MOST: Final = 64 << 20  # bytes of an index or a config; that of a trillion parameters has 15 MB
_SECONDS: Final = 30.0  # for one answer of the hub
LAYER: Final = re.compile(r"(?:(?:language_model|model|transformer)\.)*layers\.(\d+)\.(.+)")
# Tensors whose rows say what config.json says as well, by the end of their names. No way of packing changes the rows
# of a matrix that is called `weight`.
HEAD_ROWS: Final = "self_attn.k_proj.weight"
LATENT_ROWS: Final = "self_attn.kv_a_proj_with_mqa.weight"
INDEXER_ROWS: Final = "self_attn.indexer.wk.weight"
EXPERT_ROWS: Final = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight")
_TOLD_BY_ROWS: Final = frozenset({HEAD_ROWS, LATENT_ROWS, INDEXER_ROWS, *EXPERT_ROWS})


class CheckpointFiles(Protocol):
    """Where a checkpoint's files lie. Reading raises OSError or HostError."""

    where: str
    sizes: Mapping[CheckpointFile, int]  # bytes, by name
    every_header: bool  # whether reading a header costs nothing

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """So many bytes of a file, fewer at its end."""


class LocalFiles:
    """A directory."""

    every_header = True

    def __init__(self, directory: Path) -> None:
        """Raise NoWeightsError where there is none, WeightsError for one that cannot be read."""
        self.where = str(directory)
        self._directory = directory
        try:
            self.sizes: Mapping[CheckpointFile, int] = {
                CheckpointFile(path.name): path.stat().st_size for path in directory.iterdir() if path.is_file()
            }
        except UnsafeValueError as error:
            raise CheckpointError(str(error), where=self.where, hint="rename or remove that file") from error
        except FileNotFoundError as error:
            raise CheckpointNotFoundError("there is no such directory", where=self.where) from error
        except OSError as error:
            raise CheckpointError(f"the checkpoint cannot be read: {error.strerror}", where=self.where) from error

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """As its protocol says."""
        with (self._directory / name).open("rb") as file:
            file.seek(begin)
            return file.read(min(length, self.sizes[name]))  # room is made for all that is asked for


class HubFiles:
    """One commit of a repository."""

    every_header = False

    def __init__(self, listing: Listing, hub: Hub) -> None:
        """Nothing is asked yet."""
        self.where = f"{listing.repository}@{listing.commit[:8]}"
        self.sizes: Mapping[CheckpointFile, int] = {name: file.size for name, file in listing.files.items()}
        self._address, self._headers = file_address(listing, hub)

    def read(self, name: CheckpointFile, begin: int, length: int) -> bytes:
        """As its protocol says; a store that sends the whole file is left as soon as there is enough of it."""
        import httpx  # noqa: PLC0415 - it takes 0.2 s, and few commands ask

        asked = {**self._headers, "Range": f"bytes={begin}-{begin + length - 1}", "Accept-Encoding": "identity"}
        found = bytearray()
        try:
            with httpx.stream(
                "GET", f"{self._address}/{name}", headers=asked, timeout=_SECONDS, follow_redirects=True
            ) as answer:
                answer.raise_for_status()
                left = begin if answer.status_code == httpx.codes.OK else 0  # bytes before those that were asked for
                for piece in answer.iter_raw():
                    found += piece[left:]
                    left = max(left - len(piece), 0)
                    if len(found) >= length:
                        break
        except httpx.HTTPError as error:
            hint = "try again; `HF_ENDPOINT` names a mirror"
            raise HostError(f"`{name}` cannot be fetched: {error}", where=self.where, hint=hint) from error
        return bytes(found[:length])


@dataclass(kw_only=True)
class CheckpointSummary:
    """A checkpoint without its tensors. Layers are counted by the numbers in the names of tensors."""

    where: str
    config: CheckpointConfig
    quantised: CheckpointConfig | None  # ModelOpt's own file
    shards: int
    weight_bytes: int
    layers: Counter[int] = field(default_factory=Counter)  # tensors of each
    layer_bytes: Counter[int] = field(default_factory=Counter)  # of those whose header was read
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)  # one tensor of each of the kinds above
    tensors: dict[str, StoredTensor] = field(default_factory=dict)  # of the headers that were read
    _kinds: dict[StoredTensor, StoredTensor] = field(default_factory=dict)  # each once: most tensors are alike

    def count_layers(self, names: Iterable[str]) -> None:
        """Count the layers that tensors of these names are of."""
        self.layers.update(int(match[1]) for name in names if (match := LAYER.fullmatch(name)) is not None)

    def take(self, header: Mapping[str, StoredTensor]) -> None:
        """Take note of what a header says."""
        for name, tensor in header.items():
            self.tensors[name] = self._kinds.setdefault(tensor, tensor)
            if (match := LAYER.fullmatch(name)) is None:
                continue
            self.layer_bytes[int(match[1])] += tensor.size
            shape = tensor.shape
            if match[2] in _TOLD_BY_ROWS and len(shape) == 2 and shape[1] != 1:
                self.rows.setdefault(match[2], (name, shape[0]))


def outline_of(directory: Path) -> CheckpointSummary | None:
    """The outline of a checkpoint whose headers are read elsewhere, and taken; None without a config."""
    try:
        place = LocalFiles(directory)
        config, quantised = (_config(place, name) for name in (CONFIG, QUANT_CONFIG))
    except CheckpointError:
        return None  # `inspect` says so
    sizes = [size for name, size in place.sizes.items() if name.endswith(".safetensors")]
    if config is None:
        return None
    return CheckpointSummary(
        where=place.where, config=config, quantised=quantised, shards=len(sizes), weight_bytes=sum(sizes)
    )


def local_outline(directory: Path) -> CheckpointSummary:
    """The outline of a checkpoint in a directory.

    Raises NoWeightsError where there is none, WeightsError with everything that is wrong with it.
    """
    return _outline(LocalFiles(directory))


def shard_names(directory: Path) -> tuple[CheckpointFile, ...]:
    """The files of a checkpoint's weights, as its index names them. Raises as `local_outline`."""
    placed, problems = _placed(LocalFiles(directory))
    if problems:
        raise CheckpointError("the checkpoint is incomplete or altered", where=str(directory), problems=problems)
    return tuple(sorted(placed))


def hub_outline(repository: str, revision: str | None, hub: Hub) -> tuple[CheckpointSummary, Listing]:
    """The outline of a checkpoint on the hub, and its commit. Raises as `list_files`, WeightsError as above."""
    try:
        listing = list_files(repository, revision, hub)
    except CheckpointError:
        raise
    except HostError as error:
        hint = "try again; `HF_ENDPOINT` names a mirror; or name a directory that holds the checkpoint"
        raise HostError(error.message, where=error.where, hint=hint) from error
    return _outline(HubFiles(listing, hub)), listing


def _outline(place: CheckpointFiles) -> CheckpointSummary:
    config = _config(place, CONFIG)
    if config is None:
        raise CheckpointError(f"there is no `{CONFIG}`", where=place.where, hint="name the directory of a checkpoint")
    placed, problems = _placed(place)
    sizes = {shard: place.sizes[shard] for shard in placed if shard in place.sizes}
    problems += [Problem(f"`{shard}` is missing", place.where) for shard in sorted({*placed} - {*sizes})]
    outline = CheckpointSummary(
        where=place.where,
        config=config,
        quantised=_config(place, QUANT_CONFIG),
        shards=len(placed),
        weight_bytes=sum(sizes.values()),
    )
    for names in placed.values():
        outline.count_layers(names)
    for shard in _wanted(placed, outline, every=place.every_header or not outline.layers):
        if shard in sizes:
            problems += _read(place, shard, placed[shard], outline)
    if problems:
        raise CheckpointError("the checkpoint is incomplete or altered", where=place.where, problems=problems)
    return outline


def _placed(place: CheckpointFiles) -> Placed:
    content = place.read(INDEX, 0, _MOST) if INDEX in place.sizes else None
    return placed_tensors(content, single=SINGLE in place.sizes, where=place.where)


def _config(place: CheckpointFiles, name: CheckpointFile) -> CheckpointConfig | None:
    if name not in place.sizes:
        return None
    where = f"{place.where}/{name}"
    try:
        return CheckpointConfig.parse(place.read(name, 0, _MOST))
    except ValueError as error:
        raise CheckpointError(f"`{name}` is not JSON: it was cut off or altered", where=where) from error
    except OSError as error:
        raise CheckpointError(f"`{name}` cannot be read: {error.strerror}", where=where) from error


def _wanted(
    placed: Mapping[CheckpointFile, set[str]], outline: CheckpointSummary, *, every: bool
) -> list[CheckpointFile]:
    """The files whose headers are read: each, or those with the layers behind the last and one of each kind of row."""
    if every:
        return sorted(placed)
    layers = outline.config.count("layers")
    wanted: dict[CheckpointFile, None] = {}
    missing = set(_TOLD_BY_ROWS)
    for shard, names in sorted(placed.items()):
        for match in filter(None, map(LAYER.fullmatch, names)):
            if match[2] in missing or (layers is not None and int(match[1]) >= layers.number):
                missing.discard(match[2])
                wanted[shard] = None
    return list(wanted)


def _read(place: CheckpointFiles, shard: CheckpointFile, named: set[str], outline: CheckpointSummary) -> list[Problem]:
    """Take note of a file's header, and say what is wrong with it."""
    where = f"{place.where}/{shard}"
    try:
        header = whole_header(lambda begin, length: place.read(shard, begin, length), place.sizes[shard])
    except (BadShardError, OSError) as error:
        return [unreadable(shard, where, error)]
    outline.take(header)
    if not named:  # there is no index
        outline.count_layers(header)
    if lost := sorted(named - header.keys()):
        return [Problem(f"`{shard}` lacks {len(lost)} tensors the index names, `{lost[0]}` among them", where)]
    return []
