"""Reader of a checkpoint's config, index and shard headers, without tensors."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
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
TEMPLATE: Final = CheckpointFile("chat_template.jinja")
TOKENIZER_CONFIG: Final = CheckpointFile("tokenizer_config.json")
INCOMPLETE: Final = "the checkpoint is incomplete or modified"
T = TypeVar("T")
_ENGINE_FILES: Final = (CONFIG, QUANT_CONFIG, CheckpointFile("generation_config.json"))
_MAX_ENGINE_FILE: Final = 16 << 20  # bytes; Quark lists each excluded layer
_COPY_AGAIN: Final = "download or copy the file again"
_MAX_MODULES: Final = 32  # Python files of a model with its own code
_MAX_BYTES: Final = 64 << 20  # for an index or config; the index of a trillion parameters has 15 MB


@dataclass(frozen=True)
class CheckpointIndex:
    """The tensors of each shard according to the index, and the problems of the index.

    Without an index there is one shard without known tensors.
    """

    shards: Mapping[CheckpointFile, set[str]]
    problems: tuple[Problem, ...]
    total_bytes: int = 0  # size of all tensors; 0: not stated

    @cached_property
    def shard_by_tensor(self) -> Mapping[str, CheckpointFile]:
        """The shard of each tensor in the index."""
        return {name: shard for shard, names in self.shards.items() for name in names}


class Checkpoint:
    """A checkpoint in a directory or on the hub; each file is read once, on demand.

    A checkpoint on a remote host is read from its mirror, a directory of sparse files (see `remote_download`).
    """

    def __init__(self, files: CheckpointFiles) -> None:
        """Create a reader, without reading."""
        self.files = files
        self._headers: dict[CheckpointFile, Mapping[str, StoredTensor]] = {}
        self._dtypes: dict[CheckpointFile, Mapping[str, str]] = {}
        self._shared: dict[StoredTensor, StoredTensor] = {}  # equal tensors share one object, to save memory

    @classmethod
    def local(cls, directory: Path) -> "Checkpoint":
        """Open the checkpoint in a directory. Raises CheckpointNotFoundError, CheckpointError."""
        return cls(LocalFiles(directory))

    @property
    def location(self) -> str:
        """The location of the checkpoint in messages."""
        return self.files.location

    @cached_property
    def config(self) -> CheckpointConfig:
        """The config.json. Raises CheckpointError if it is missing or unreadable."""
        if (config := self._config(CONFIG)) is None:
            hint = "name the directory of a checkpoint"
            raise CheckpointError(f"no `{CONFIG}` found", location=self.location, hint=hint)
        return config

    @cached_property
    def quant_config(self) -> CheckpointConfig | None:
        """ModelOpt's config file. Raises CheckpointError if it is unreadable."""
        return self._config(QUANT_CONFIG)

    @cached_property
    def chat_template(self) -> str:
        """The chat template, from its own file or the tokenizer's config; "" without one. Raises CheckpointError."""
        if TEMPLATE in self.files.sizes:
            return self.read(TEMPLATE).decode(errors="replace")
        tokenizer = self._config(TOKENIZER_CONFIG)
        template = tokenizer.data.get("chat_template") if tokenizer is not None else None
        if isinstance(template, list):  # named templates: `{name, template}`
            templates = {str(item.get("name")): item.get("template") for item in template if isinstance(item, dict)}
            template = templates.get("tool_use", templates.get("default"))
        return template if isinstance(template, str) else ""

    @cached_property
    def index(self) -> CheckpointIndex:
        """The index. Raises CheckpointError if it is unreadable."""
        content = self.read(INDEX) if INDEX in self.files.sizes else None
        return parse_index(content, single=SINGLE in self.files.sizes, location=self.location)

    @property
    def shards(self) -> Mapping[CheckpointFile, set[str]]:
        """The tensors of each shard according to the index. Raises CheckpointError for an invalid index."""
        if self.index.problems:
            raise CheckpointError(INCOMPLETE, location=self.location, problems=self.index.problems)
        return self.index.shards

    def header(self, shard: CheckpointFile) -> Mapping[str, StoredTensor]:
        """Read the tensors of a shard by name. Raises CheckpointError if it is missing or incomplete, HostError."""
        if shard not in self._headers:
            tensors = self._parse_shard(shard, complete_header)
            self._headers[shard] = {name: self._shared.setdefault(tensor, tensor) for name, tensor in tensors.items()}
        return self._headers[shard]

    def dtypes(self, shard: CheckpointFile) -> Mapping[str, str]:
        """Read the dtypes of a shard's tensors, much faster than `header` and also from an incomplete shard."""
        if shard not in self._dtypes:
            self._dtypes[shard] = self._parse_shard(shard, tensor_dtypes)
        return self._dtypes[shard]

    def _parse_shard(self, shard: CheckpointFile, parse: Callable[[Read, int], T]) -> T:
        location = f"{self.location}/{shard}"
        if shard not in self.files.sizes:
            raise CheckpointError(f"`{shard}` is missing", location=location, hint=_COPY_AGAIN)
        try:
            return parse(partial(self.files.read, shard), self.files.sizes[shard])
        except BadShardError as error:
            raise CheckpointError(f"`{shard}` {error}", location=location, hint=_COPY_AGAIN) from error
        except (OSError, UnsafeValueError) as error:
            raise CheckpointError(f"`{shard}`: {error}", location=location) from error

    def read(self, name: CheckpointFile) -> bytes:
        """Read a small file. Raises CheckpointError if it is unreadable, HostError."""
        try:
            return self.files.read(name, 0, _MAX_BYTES)
        except OSError as error:
            raise CheckpointError(
                f"cannot read `{name}`: {error.strerror}", location=f"{self.location}/{name}"
            ) from error

    def engine_files(self) -> dict[str, str] | None:
        """Read the small files that define the shape of the model for an engine, by name; None without a config.json.

        Raises CheckpointError, HostError.
        """
        sizes = self.files.sizes
        if CONFIG not in sizes:
            return None
        modules = sorted(name for name in sizes if name.endswith(".py") and "/" not in name)[:_MAX_MODULES]
        small = [name for name in (*_ENGINE_FILES, *modules) if sizes.get(name, inf) <= _MAX_ENGINE_FILE]
        return {name: self.read(name).decode(errors="replace") for name in small}

    def _config(self, name: CheckpointFile) -> CheckpointConfig | None:
        if name not in self.files.sizes:
            return None
        try:
            return CheckpointConfig.parse(self.read(name))
        except ValueError as error:
            message = f"`{name}` is not JSON: the file is truncated or modified"
            raise CheckpointError(message, location=f"{self.location}/{name}", hint=_COPY_AGAIN) from error


def local_checkpoint(directory: Path) -> Checkpoint | None:
    """Open the checkpoint in a directory; None without a config.json. Raises CheckpointError."""
    return Checkpoint.local(directory) if (directory / CONFIG).is_file() else None


def parse_index(content: bytes | None, *, single: bool, location: str) -> CheckpointIndex:
    """Parse an index; without one (`content` is None) the checkpoint must have a `single` file."""
    if content is None:
        if single:
            return CheckpointIndex({SINGLE: set()}, ())
        return CheckpointIndex({}, (Problem(f"no weights found: neither `{INDEX}` nor `{SINGLE}`", location),))
    location = f"{location}/{INDEX}"
    try:
        document = parse_json(content)
        weight_map = [(str(name), shard) for name, shard in document["weight_map"].items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"cannot read `{INDEX}`: the file is truncated or modified"
        return CheckpointIndex({}, (Problem(message, location),))
    if not weight_map:
        return CheckpointIndex({}, (Problem(f"`{INDEX}` names no tensor", location),))
    checked: dict[str, CheckpointFile] = {}  # check each name once, as an index repeats it for every tensor
    shards: dict[CheckpointFile, set[str]] = defaultdict(set)
    problems: dict[str, Problem] = {}
    for name, shard in weight_map:
        try:
            file = checked.get(shard) if isinstance(shard, str) else None
            shards[file or checked.setdefault(shard, CheckpointFile(shard))].add(name)
        except UnsafeValueError:
            outside = f"`{INDEX}` names a file outside the checkpoint: `{display(shard)}`"
            problems.setdefault(display(shard), Problem(outside, location))
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return CheckpointIndex(shards, tuple(problems.values()), total if isinstance(total, int) and total > 0 else 0)
