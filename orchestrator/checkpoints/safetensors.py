"""Reader of safetensors headers: 8 bytes of length, then JSON with the offsets of each tensor.

The reader checks the rules of the format (huggingface/safetensors README, "Format"): the header has at most 100 MB, the
tensors cover the data without holes or overlaps, and the file ends with the last tensor.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from orchestrator.core.text import parse_json

Read: TypeAlias = Callable[[int, int], bytes]  # (first byte, length)
_MAX_HEADER_BYTES = 100_000_000
_LFS = b"version https://git-lfs"


class BadShardError(ValueError):
    """The reason why a file is not a complete safetensors file."""


class StoredTensor(NamedTuple):
    """A tensor in a header: dtype (`BF16`, `U8`, …), shape, size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a file by name, from its header only. Raises BadShardError, OSError."""
    with path.open("rb") as file:

        def read(begin: int, length: int) -> bytes:
            file.seek(begin)
            return file.read(length)

        return complete_header(read, path.stat().st_size)


def tensor_dtypes(read: Read, size: int) -> dict[str, str]:
    """Read the dtype (`BF16`, `U8`, …) of each tensor. Raises BadShardError."""
    header, _ = _read(read, size)
    return {name: str(entry["dtype"]) for name, entry in header.items() if isinstance(entry, dict) and "dtype" in entry}


def complete_header(read: Read, size: int) -> dict[str, StoredTensor]:
    """Read the tensors of a file of `size` bytes. Raises BadShardError if the header does not match the size."""
    header, begin = _read(read, size)
    end = begin + _data_end(header)
    if size != end:
        kind = "truncated" if size < end else "too long"
        raise BadShardError(f"is {kind}: {size} bytes, but {end} by its header")
    return {name: _stored(entry) for name, entry in header.items() if name != "__metadata__"}


def _stored(entry: dict[str, Any]) -> StoredTensor:
    """Parse an entry with valid offsets; without a shape, it does not count as a matrix."""
    begin, end = entry["data_offsets"]
    shape = entry.get("shape")
    lengths = shape if isinstance(shape, list) and all(type(length) is int for length in shape) else ()
    return StoredTensor(dtype=str(entry.get("dtype", "")), shape=tuple(lengths), size=end - begin)


def _read(read: Read, size: int) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of the data."""
    start = read(0, 8)
    length = int.from_bytes(start, "little")
    if _LFS.startswith(start) and len(start) == 8:
        raise BadShardError("is a git-lfs pointer, not the file it points to (`git lfs pull`)")
    if len(start) < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
        raise BadShardError("has no safetensors header")
    if size < 8 + length:
        raise BadShardError(f"is truncated inside its header, at {size} bytes")
    return _object(read(8, length)), 8 + length


def _object(text: bytes) -> dict[str, Any]:
    try:
        header = parse_json(text)
    except ValueError as error:
        raise BadShardError("has a header that is not JSON") from error
    if not isinstance(header, dict):
        raise BadShardError("has a header that is not a JSON object")
    return header


def _data_end(header: dict[str, Any]) -> int:
    """Return the end of the last tensor. Raises BadShardError for a hole, an overlap or missing offsets."""
    offsets = []
    for name, entry in header.items():
        match entry if name != "__metadata__" else None:
            case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
                offsets.append((begin, end))
            case None:
                pass
            case _:
                raise BadShardError(f"has no offsets of tensor `{name}` in its header")
    position = 0
    for begin, end in sorted(offsets):
        if begin != position:
            raise BadShardError(f"has a hole or an overlap at byte {position} of its data")
        position = end
    return position
