"""The folder that a quantization works in, beside its target: what is done there outlives whatever ends the command.

::

    TARGET.quantizing/job.json        what is being done; the workers read it
    TARGET.quantizing/checkpoint/     shards that are done; in the end it becomes TARGET
    TARGET.quantizing/made/           what Quark said of each of them
    TARGET.quantizing/parts/, claims/ of the workers that run
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
    """What is being done; another one does not go on with its shards."""

    source: str
    files: Mapping[str, Sequence[int]]  # of the source: size in bytes and mtime in ns
    shards: Sequence[str]
    model_type: str
    scheme: str
    exclude: Sequence[str]
    layers: Mapping[str, str]
    made_by: str  # the list of packages, or the image


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What Quark said of a shard: the config.json of it alone, versions of packages, seconds of one worker."""

    config: Mapping[str, Any]  # with the modules that were left as they are, `quantization_config.exclude`
    versions: Mapping[str, str]
    device: str
    seconds: float


@dataclass(frozen=True)
class WorkDir:
    """See above."""

    target: Path

    @property
    def root(self) -> Path:
        """Where it lies: beside the target."""
        return self.target.with_name(f"{self.target.name}.quantizing")

    @property
    def checkpoint(self) -> Path:
        """Where shards that are done lie."""
        return self.root / "checkpoint"

    @contextmanager
    def lock(self, progress: Progress) -> Iterator[None]:
        """Be the only command that works here, waiting for another one and saying so."""
        self._require_owned()  # before a lock is laid into it
        with file_lock(self.root / _LOCK, progress):
            yield

    def begin(self, job: QuantizationJob) -> None:
        """Make it ready for workers. Raises UsageError where what lies here is of another job."""
        path = self.root / _JOB
        text = json.dumps(asdict(job), indent=1, sort_keys=True) + "\n"
        self._require_owned()
        with suppress(FileNotFoundError):
            if (differ := _differences(read_private(path).decode(errors="replace"), text)) is not None:
                raise UsageError(
                    f"cannot resume this quantization: it was started with another {differ}",
                    where=str(self.root),
                    hint=f"quantize into another target, or start again: `rm -r {shlex.quote(str(self.root))}`",
                )
        self.root.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)  # the first of all: it says whose the folder is
        for name in map(FileName, ("parts", "claims")):
            remove_tree(self.root / name, within=self.root)
        for name in map(FileName, ("parts", "claims", "made", "checkpoint")):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def in_progress(self) -> bool:
        """Whether a quantization works here, or did when it was killed."""
        return (self.root / _JOB).is_file()

    def _require_owned(self) -> None:
        """Raise UsageError for a folder that somebody else has made, or that is a link: it is emptied in the end."""
        names = {entry.name for entry in self.root.iterdir()} if self.root.is_dir() else set()
        left = {name for name in names if name != _LOCK and not name.startswith(f".{_JOB}.")}
        if self.root.is_symlink() or (left and _JOB not in names):
            raise UsageError(
                "the directory was not made by `deploy quantize`",
                where=str(self.root),
                hint="name another target: `deploy quantize` removes its working directory",
            )

    def resume(self, foreseen: Forecast) -> set[CheckpointFile]:
        """The shards that are done; one that is not what was foreseen is removed, and made again."""
        done = set()
        for shard, tensors in foreseen.shards.items():
            if self._fault(shard, tensors):
                remove_file(join(self.checkpoint, shard))
            else:
                done.add(shard)
        return done

    def finished(self, shards: Sequence[CheckpointFile]) -> list[CheckpointFile]:
        """The shards that lie here, by their names alone."""
        return [shard for shard in shards if (self.checkpoint / shard).exists()]

    def require_complete(self, foreseen: Forecast) -> None:
        """Raise BuildError with every shard that is not what was foreseen."""
        faults = {shard: self._fault(shard, tensors) for shard, tensors in foreseen.shards.items()}
        problems = [Problem(f"`{shard}` {fault}", str(self.checkpoint)) for shard, fault in faults.items() if fault]
        if problems:
            raise BuildError("the output of Quark does not match the recipe", problems=problems)

    def result(self, shard: CheckpointFile) -> ShardResult:
        """What Quark said of a shard. Raises OSError, ValueError, TypeError."""
        match note := parse_json((self.root / "made" / f"{shard}.json").read_text(encoding="utf-8")):
            case {
                "config": {"quantization_config": {"exclude": [*names]}},
                "versions": {},
                "device": str(),
                "seconds": float() | int(),
            } if all(isinstance(name, str) for name in names):
                return ShardResult(**note)
        raise ValueError("not what Quark says of a shard")

    def _fault(self, shard: CheckpointFile, wanted: Mapping[str, StoredTensor]) -> str:
        """What is wrong with a shard, as the rest of a sentence; nothing where it is right."""
        try:
            found = stored_tensors(self.checkpoint / shard)
            self.result(shard)
        except BadShardError as error:
            return str(error)
        except (OSError, ValueError, TypeError):
            return "is not there"
        odd = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        return f"holds {len(odd)} tensors that differ, `{odd[0]}` among them" if odd else ""

    def remove(self) -> None:
        """Remove the folder. Raises UsageError where this tool did not make it."""
        self._require_owned()
        remove_tree(self.root, within=self.target.parent)


def _differences(before: str, now: str) -> str | None:
    """In what two jobs differ, in words; None where they are the same."""
    if before == now:
        return None
    try:
        old, new = parse_json(before), parse_json(now)
        keys = [key for key in new if old.get(key) != new[key]]
    except (ValueError, AttributeError):
        return "job"
    if {"source", "files", "shards", "model_type"} & {*keys}:
        return "source, or another state of it"
    return "Quark" if keys == ["made_by"] else "recipe"
