"""The one reader of a checkpoint: its config, its index, the headers of its shards. No tensor is read."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final, TypeVar

from orchestrator.checkpoints.config import CONFIG, QUANT_CONFIG, CheckpointConfig
from orchestrator.checkpoints.files import CheckpointFiles, LocalFiles
from orchestrator.checkpoints.safetensors import BadShardError, Read, StoredTensor, complete_header, tensor_dtypes
from orchestrator.core.errors import CheckpointError, Problem
from orchestrator.core.safe_paths import CheckpointFile, UnsafeValueError, display
from orchestrator.core.text import parse_json

INDEX: Final = CheckpointFile("model.safetensors.index.json")
SINGLE: Final = CheckpointFile("model.safetensors")
INCOMPLETE: Final = "the checkpoint is incomplete or altered"
T = TypeVar("T")
_MAX_BYTES: Final = 64 << 20  # of an index or a config; that of a trillion parameters has 15 MB


@dataclass(frozen=True)
class CheckpointIndex:
    """The shards of a checkpoint, each with the tensors that the index places in it, and what is wrong with the index.

    Without an index there is one shard, of whose tensors none is known.
    """

    shards: Mapping[CheckpointFile, set[str]]
    problems: tuple[Problem, ...]

    @cached_property
    def shard_by_tensor(self) -> Mapping[str, CheckpointFile]:
        """The shard of each tensor that the index names."""
        return {name: shard for shard, names in self.shards.items() for name in names}


class Checkpoint:
    """A checkpoint in a directory or on the hub. Each part of it is read when it is first asked for, and once.

    A checkpoint of a remote host is read from its mirror, a directory of sparse files (see `remote_download`).
    """

    def __init__(self, files: CheckpointFiles) -> None:
        """Read nothing yet."""
        self.files = files
        self._headers: dict[CheckpointFile, Mapping[str, StoredTensor]] = {}
        self._dtypes: dict[CheckpointFile, Mapping[str, str]] = {}
        self._kinds: dict[StoredTensor, StoredTensor] = {}  # each once: most tensors are alike

    @classmethod
    def local(cls, directory: Path) -> "Checkpoint":
        """The checkpoint in a directory. Raises CheckpointNotFoundError, CheckpointError."""
        return cls(LocalFiles(directory))

    @property
    def location(self) -> str:
        """What messages call it."""
        return self.files.location

    @cached_property
    def config(self) -> CheckpointConfig:
        """Its config.json. Raises CheckpointError where there is none that can be read."""
        if (found := self._config(CONFIG)) is None:
            raise CheckpointError(
                f"there is no `{CONFIG}`", where=self.location, hint="name the directory of a checkpoint"
            )
        return found

    @cached_property
    def quant_config(self) -> CheckpointConfig | None:
        """ModelOpt's own file. Raises CheckpointError for one that cannot be read."""
        return self._config(QUANT_CONFIG)

    @cached_property
    def index(self) -> CheckpointIndex:
        """Where its tensors are. Raises CheckpointError for an index that cannot be read."""
        content = self.read(INDEX) if INDEX in self.files.sizes else None
        return parse_index(content, single=SINGLE in self.files.sizes, location=self.location)

    @property
    def shards(self) -> Mapping[CheckpointFile, set[str]]:
        """The shards with the tensors that the index names in them. Raises CheckpointError for a faulty index."""
        if self.index.problems:
            raise CheckpointError(INCOMPLETE, where=self.location, problems=self.index.problems)
        return self.index.shards

    def header(self, shard: CheckpointFile) -> Mapping[str, StoredTensor]:
        """The tensors of a shard, by name. Raises CheckpointError for one that is missing or not whole, HostError."""
        if shard not in self._headers:
            found = self._parse_shard(shard, complete_header)
            self._headers[shard] = {name: self._kinds.setdefault(tensor, tensor) for name, tensor in found.items()}
        return self._headers[shard]

    def dtypes(self, shard: CheckpointFile) -> Mapping[str, str]:
        """The dtype of each tensor of a shard, whole or not: in a fraction of the time. Raises as `header`."""
        if shard not in self._dtypes:
            self._dtypes[shard] = self._parse_shard(shard, tensor_dtypes)
        return self._dtypes[shard]

    def _parse_shard(self, shard: CheckpointFile, parse: Callable[[Read, int], T]) -> T:
        where = f"{self.location}/{shard}"
        if shard not in self.files.sizes:
            raise CheckpointError(f"`{shard}` is missing", where=where)
        try:
            return parse(partial(self.files.read, shard), self.files.sizes[shard])
        except BadShardError as error:
            raise CheckpointError(f"`{shard}` {error}", where=where) from error
        except (OSError, UnsafeValueError) as error:
            raise CheckpointError(f"`{shard}`: {error}", where=where) from error

    def read(self, name: CheckpointFile) -> bytes:
        """A small file. Raises CheckpointError for one that cannot be read, HostError."""
        try:
            return self.files.read(name, 0, _MAX_BYTES)
        except OSError as error:
            raise CheckpointError(
                f"`{name}` cannot be read: {error.strerror}", where=f"{self.location}/{name}"
            ) from error

    def _config(self, name: CheckpointFile) -> CheckpointConfig | None:
        if name not in self.files.sizes:
            return None
        try:
            return CheckpointConfig.parse(self.read(name))
        except ValueError as error:
            message = f"`{name}` is not JSON: it was cut off or altered"
            raise CheckpointError(message, where=f"{self.location}/{name}") from error


def local_checkpoint(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory; None for one without config.json. Raises CheckpointError."""
    return Checkpoint.local(directory) if (directory / CONFIG).is_file() else None


def parse_index(content: bytes | None, *, single: bool, location: str) -> CheckpointIndex:
    """An index of this `content`. Without one (None) there must be a `single` file. `where` is the checkpoint."""
    if content is None:
        if single:
            return CheckpointIndex({SINGLE: set()}, ())
        return CheckpointIndex({}, (Problem(f"there are no weights: neither `{INDEX}` nor `{SINGLE}`", location),))
    location = f"{location}/{INDEX}"
    try:
        weights = parse_json(content)["weight_map"]
        places = [(str(name), shard) for name, shard in weights.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"`{INDEX}` is not an index that can be read: it was cut off or altered"
        return CheckpointIndex({}, (Problem(message, location),))
    if not places:
        return CheckpointIndex({}, (Problem(f"`{INDEX}` names no tensor", location),))
    checked: dict[str, CheckpointFile] = {}  # each name once: an index repeats it for every tensor
    shards: dict[CheckpointFile, set[str]] = defaultdict(set)
    problems: dict[str, Problem] = {}
    for name, shard in places:
        try:
            known = checked.get(shard) if isinstance(shard, str) else None
            shards[known or checked.setdefault(shard, CheckpointFile(shard))].add(name)
        except UnsafeValueError:
            outside = f"`{INDEX}` names a file outside the checkpoint: `{display(shard)}`"
            problems.setdefault(display(shard), Problem(outside, location))
    return CheckpointIndex(shards, tuple(problems.values()))
