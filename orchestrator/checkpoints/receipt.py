"""The receipt beside a checkpoint: what was verified, with each file's size and time, so that it is done once.

It stands beside the directory (`<directory>.receipt.json`), never in it: a mounted share may be read-only, and a
checkpoint holds what its publisher put there.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, PlainValidator, TypeAdapter

from orchestrator.checkpoints.config_check import Mismatch
from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.remote_fetch import PARTS
from orchestrator.core.files import write_cache
from orchestrator.core.safe_paths import CheckpointFile, CommitHash, UnsafeValueError, byte_count
from orchestrator.plan.plan import Model

_Count: TypeAlias = Annotated[int, AfterValidator(byte_count)]
# By relative path: size in bytes, mtime in ns.
Stamps: TypeAlias = Mapping[Annotated[str, AfterValidator(CheckpointFile)], tuple[_Count, _Count]]


@dataclass(frozen=True, kw_only=True)
class CheckpointReceipt:
    """A verification that succeeded. `revision` is the hub's commit where it is known.

    With `accepted` the user takes a checkpoint whose tensors differ from its config.
    """

    location: str
    revision: Annotated[CommitHash, PlainValidator(CommitHash)] | None
    mtp_layer: int | None  # the layer whose tensors were found
    shards: int
    tensors: int
    files: Stamps
    mismatches: tuple[Mismatch, ...]
    allow_mismatch: bool

    def is_for(self, model: Model) -> bool:
        """Whether it speaks of this model's checkpoint."""
        pinned = model.checkpoint.revision
        as_pinned = pinned is None or self.revision is None or self.revision.startswith(pinned)
        return self.location == model.checkpoint.path and as_pinned


def receipt_path(directory: Path) -> Path:
    """Where the receipt of a checkpoint stands."""
    return directory.with_name(directory.name + ".receipt.json")


def read_receipt(directory: Path) -> CheckpointReceipt | None:
    """The receipt of a checkpoint; None where there is none that can be read."""
    with suppress(OSError, ValueError):
        return _adapter().validate_json(receipt_path(directory).read_bytes(), strict=True)
    return None


@cache
def _adapter() -> TypeAdapter[CheckpointReceipt]:
    """Made when the first receipt is read."""
    return TypeAdapter(CheckpointReceipt)


def write_receipt(directory: Path, receipt: CheckpointReceipt) -> None:
    """Write it, except where the place cannot be written (a read-only share): the checkpoint is verified each time."""
    with suppress(OSError):
        write_cache(receipt_path(directory), json.dumps(asdict(receipt), indent=1, sort_keys=True) + "\n")


def known_commit(directory: Path) -> CommitHash | None:
    """The hub's commit that a checkpoint is of, by its receipt or by huggingface_hub's notes; None for not known."""
    receipt = read_receipt(directory)
    if receipt is not None and receipt.revision:
        return receipt.revision
    with suppress(OSError, IndexError, UnsafeValueError):
        note = directory / ".cache/huggingface/download/config.json.metadata"  # its first line, hub 0.24 to 2
        return CommitHash(note.read_text(encoding="utf-8", errors="replace").split()[0])
    return None


def bytes_present(directory: Path) -> int:
    """Bytes of a checkpoint that are there, of files that are still on their way too; 0 where there is none."""
    if not directory.is_dir():
        return 0
    parts = sum(part.stat().st_size for part in (directory / PARTS).rglob("*.part"))
    return parts + sum(size for size, _ in file_stamps(directory).values())
