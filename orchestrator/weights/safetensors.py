"""The header of a safetensors file: 8 bytes of length, then JSON with each tensor's place in the data that follows.

The rules checked are the format's own (huggingface/safetensors README, "Format"): the header has at most 100 MB, the
tensors cover the data without holes or overlaps, and the file ends with the last of them.
"""

from pathlib import Path

from orchestrator.core.text import parse_json

_MOST = 100_000_000
_LFS = b"version https://git-lfs"


class BadShardError(ValueError):
    """Why a file is not a whole safetensors file."""


def tensor_names(path: Path) -> frozenset[str]:
    """The names of the tensors in a file, whose size its header accounts for to the byte.

    Reads the header only, whatever the size of the file. Raises BadShardError, OSError.
    """
    header, begin = _read(path)
    size, end = path.stat().st_size, begin + _data_end(header)
    if size != end:
        kind = "cut off" if size < end else "too long"
        raise BadShardError(f"is {kind}: {size} bytes, its header accounts for {end}")
    return frozenset(name for name in header if name != "__metadata__")


def tensor_dtypes(path: Path) -> dict[str, str]:
    """The dtype (`BF16`, `U8`, …) of each tensor that a file's header names. Raises BadShardError, OSError."""
    header, _ = _read(path)
    return {name: str(entry["dtype"]) for name, entry in header.items() if isinstance(entry, dict) and "dtype" in entry}


def _read(path: Path) -> tuple[dict[str, object], int]:
    """The header, and the byte at which the data begins."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if _LFS.startswith(start) and len(start) == 8:
            raise BadShardError("is a git-lfs pointer, not the file it points to (`git lfs pull`)")
        if len(start) < 8 or not 2 <= length <= _MOST:
            raise BadShardError("has no safetensors header")
        if size < 8 + length:
            raise BadShardError(f"is cut off inside its header, at {size} bytes")
        return _object(file.read(length)), 8 + length


def _object(text: bytes) -> dict[str, object]:
    try:
        header = parse_json(text)
    except ValueError as error:
        raise BadShardError("has a header that is not JSON") from error
    if not isinstance(header, dict):
        raise BadShardError("has a header that is not a JSON object")
    return header


def _data_end(header: dict[str, object]) -> int:
    """Where the last tensor ends. Raises BadShardError for a hole, an overlap or an entry without a place."""
    places = []
    for name, entry in header.items():
        match entry if name != "__metadata__" else None:
            case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
                places.append((begin, end))
            case None:
                pass
            case _:
                raise BadShardError(f"has no place for tensor `{name}` in its header")
    position = 0
    for begin, end in sorted(places):
        if begin != position:
            raise BadShardError(f"has a hole or an overlap at byte {position} of its data")
        position = end
    return position
