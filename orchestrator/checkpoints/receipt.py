"""Receipt of a verified checkpoint, with the size and mtime of each file, to skip the next verification.

The receipt is a file next to the directory (`<directory>.receipt.json`), not in it: a mounted share may be read-only,
and a checkpoint contains only its publisher's files.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, PlainValidator

from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.mismatch import Mismatch
from orchestrator.checkpoints.remote_fetch import PARTIAL_FILES
from orchestrator.core.files import write_cache
from orchestrator.core.safe_paths import CheckpointFile, CommitHash, byte_count
from orchestrator.core.validation import type_adapter
from orchestrator.plan.plan import Model

_Count: TypeAlias = Annotated[int, AfterValidator(byte_count)]
# By relative path: size in bytes, mtime in ns.
Stamps: TypeAlias = Mapping[Annotated[str, AfterValidator(CheckpointFile)], tuple[_Count, _Count]]


@dataclass(frozen=True, kw_only=True)
class CheckpointReceipt:
    """A successful verification. `revision` is the hub's commit if known.

    With `allow_mismatch` the user accepts tensors that do not match the config.
    """

    location: str
    revision: Annotated[CommitHash, PlainValidator(CommitHash)] | None
    mtp_layer: int | None  # MTP layer with verified tensors
    shards: int
    tensors: int
    files: Stamps
    mismatches: tuple[Mismatch, ...]
    allow_mismatch: bool

    def is_for(self, model: Model) -> bool:
        """Return whether the receipt is for this model's checkpoint."""
        pinned = model.checkpoint.revision
        same_revision = pinned is None or self.revision is None or self.revision.startswith(pinned)
        return self.location == model.checkpoint.path and same_revision


def receipt_path(directory: Path) -> Path:
    """Return the path of a checkpoint's receipt."""
    return directory.with_name(directory.name + ".receipt.json")


def read_receipt(directory: Path) -> CheckpointReceipt | None:
    """Read the receipt of a checkpoint; None if it is missing or invalid."""
    with suppress(OSError, ValueError):
        content = receipt_path(directory).read_bytes()
        receipt: CheckpointReceipt = type_adapter(CheckpointReceipt).validate_json(content, strict=True)
        return receipt
    return None


def write_receipt(directory: Path, receipt: CheckpointReceipt) -> None:
    """Write the receipt, except in an unwritable directory (a read-only share), which is verified each time."""
    with suppress(OSError):
        write_cache(receipt_path(directory), json.dumps(asdict(receipt), indent=1, sort_keys=True) + "\n")


def bytes_present(directory: Path) -> int:
    """Return the bytes of a checkpoint on disk, including partial files; 0 without a directory."""
    if not directory.is_dir():
        return 0
    partial_bytes = sum(file.stat().st_size for file in (directory / PARTIAL_FILES).rglob("*.part"))
    return partial_bytes + sum(size for size, _ in file_stamps(directory).values())
