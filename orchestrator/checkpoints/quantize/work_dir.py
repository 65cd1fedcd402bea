"""Working directory of a quantization, next to its target. Finished shards remain if the command is killed.

::

    TARGET.quantizing/job.json        the job; the workers read it
    TARGET.quantizing/checkpoint/     finished shards; at the end it becomes TARGET
    TARGET.quantizing/made/           Quark's result for each shard
    TARGET.quantizing/parts/, claims/ of the running workers
    TARGET.quantizing/worker-0.log
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.checkpoints.quantize.forecast import Forecast
from orchestrator.checkpoints.safetensors import BadShardError, StoredTensor, stored_tensors
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError, Problem, UsageError
from orchestrator.core.files import atomic_write, read_private, remove_file, remove_tree
from orchestrator.core.locks import file_lock
from orchestrator.core.safe_paths import CheckpointFile, FileName, join
from orchestrator.core.text import parse_json

_JOB: Final = "job.json"
_LOCK: Final = "quantization.lock"


@dataclass(frozen=True, kw_only=True)
class QuantizationJob:
    """The inputs of a quantization; only a command with equal inputs resumes it."""

    source: str
    files: Mapping[str, Sequence[int]]  # size in bytes and mtime in ns of each source file
    shards: Sequence[str]
    model_type: str
    scheme: str
    exclude: Sequence[str]
    layers: Mapping[str, str]
    made_by: str  # the requirements file, or the image


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """Quark's result for a shard: its config.json, package versions, and the seconds of one worker."""

    config: Mapping[str, Any]  # with the excluded modules, `quantization_config.exclude`
    versions: Mapping[str, str]
    device: str
    seconds: float


@dataclass(frozen=True)
class WorkDir:
    """The working directory of a quantization; the layout is in the module's docstring."""

    target: Path

    @property
    def root(self) -> Path:
        """The path of the working directory."""
        return self.target.with_name(f"{self.target.name}.quantizing")

    @property
    def checkpoint(self) -> Path:
        """The directory of finished shards."""
        return self.root / "checkpoint"

    @contextmanager
    def lock(self, progress: Progress) -> Iterator[None]:
        """Lock the directory; wait for another command, with a message."""
        self._require_owned()  # before writing a lock file
        with file_lock(self.root / _LOCK, progress):
            yield

    def begin(self, job: QuantizationJob) -> None:
        """Prepare the directory for workers. Raises UsageError if it belongs to another job."""
        path = self.root / _JOB
        text = json.dumps(asdict(job), indent=1, sort_keys=True) + "\n"
        self._require_owned()
        with suppress(FileNotFoundError):
            if read_private(path).decode(errors="replace") != text:
                raise UsageError(
                    "cannot resume this quantization: it was started with another source, recipe or Quark",
                    location=str(self.root),
                    hint=f"quantize into another target, or start again: `rm -r {shlex.quote(str(self.root))}`",
                )
        self.root.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)  # first, to mark the folder as owned
        for name in map(FileName, ("parts", "claims")):
            remove_tree(self.root / name, within=self.root)
        for name in map(FileName, ("parts", "claims", "made", "checkpoint")):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def _require_owned(self) -> None:
        """Raise UsageError for a link, or a directory that `deploy` did not create, as it is removed at the end."""
        names = {entry.name for entry in self.root.iterdir()} if self.root.is_dir() else set()
        unexpected = {name for name in names if name != _LOCK and not name.startswith(f".{_JOB}.")}
        if self.root.is_symlink() or (unexpected and _JOB not in names):
            raise UsageError(
                "the directory was not made by `deploy quantize`",
                location=str(self.root),
                hint="name another target: `deploy quantize` removes its working directory",
            )

    def resume(self, forecast: Forecast) -> set[CheckpointFile]:
        """Return the finished shards; remove all other files, such as temporary files of a killed command."""
        for entry in self.checkpoint.iterdir():
            if entry.name not in forecast.shards:
                if entry.is_dir() and not entry.is_symlink():
                    remove_tree(entry, within=self.checkpoint)
                else:
                    remove_file(entry)
        done = set()
        for shard, tensors in forecast.shards.items():
            if self._result_problem(shard, tensors):
                remove_file(join(self.checkpoint, shard))
            else:
                done.add(shard)
        return done

    def finished(self, shards: Sequence[CheckpointFile]) -> list[CheckpointFile]:
        """Return the shards with an existing file, without reading them."""
        return [shard for shard in shards if (self.checkpoint / shard).exists()]

    def require_complete(self, forecast: Forecast) -> None:
        """Raise BuildError with every shard that differs from the forecast."""
        faults = {shard: self._result_problem(shard, tensors) for shard, tensors in forecast.shards.items()}
        problems = [Problem(f"`{shard}` {fault}", str(self.checkpoint)) for shard, fault in faults.items() if fault]
        if problems:
            raise BuildError("the output of Quark does not match the recipe", problems=problems)

    def result(self, shard: CheckpointFile) -> ShardResult:
        """Return Quark's result for a shard. Raises OSError, ValueError, TypeError."""
        match result := parse_json((self.root / "made" / f"{shard}.json").read_text(encoding="utf-8")):
            case {
                "config": {"quantization_config": {"exclude": [*names]}},
                "versions": {},
                "device": str(),
                "seconds": float() | int(),
            } if all(isinstance(name, str) for name in names):
                return ShardResult(**result)
        raise ValueError("not a result of Quark for a shard")

    def _result_problem(self, shard: CheckpointFile, expected: Mapping[str, StoredTensor]) -> str:
        """Return the problem of a shard, as the rest of a sentence; "" if it is valid."""
        try:
            stored = stored_tensors(self.checkpoint / shard)
            self.result(shard)
        except BadShardError as error:
            return str(error)
        except (OSError, ValueError, TypeError):
            return "is missing"
        different = sorted(name for name in {*stored, *expected} if stored.get(name) != expected.get(name))
        return f"has {len(different)} tensors that differ, e.g. `{different[0]}`" if different else ""

    def remove(self) -> None:
        """Remove the directory. Raises UsageError if `deploy` did not create it."""
        self._require_owned()
        remove_tree(self.root, within=self.target.parent)
