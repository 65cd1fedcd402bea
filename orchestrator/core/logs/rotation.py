"""Rotating logs of bounded size: `server.log` is the current segment; full ones are `server.log.1`, `server.log.2`, ….

Rotation keeps the first segment, which shows how a server was started and which kernels it found, and the newest ones;
the segments between them are removed.
"""

import os
from pathlib import Path
from typing import Final

from orchestrator.core.files import move, open_unbuffered, remove_file

SEGMENT_BYTES: Final = 128 << 20  # a server at 50 requests per second writes one segment a day
MAX_SEGMENTS: Final = 8  # including the current one


def segment_path(log: Path, number: int) -> Path:
    """Return the path of a full segment; numbers begin at 1."""
    return log.with_name(f"{log.name}.{number}")


def segments(log: Path) -> tuple[int, ...]:
    """Return the numbers of the existing full segments, oldest first."""
    try:
        names = [path.name for path in log.parent.iterdir()]
    except OSError:
        return ()
    ends = (name.removeprefix(f"{log.name}.") for name in names if name.startswith(f"{log.name}."))
    return tuple(sorted(int(end) for end in ends if end.isascii() and end.isdigit() and not end.startswith("0")))


class RotatingLog:
    """A private log that takes at most `max_segments` segments of `segment_bytes` bytes on disk."""

    def __init__(self, path: Path, *, segment_bytes: int = SEGMENT_BYTES, max_segments: int = MAX_SEGMENTS) -> None:
        """Open the log for writing at the end of `path`. Raises OSError."""
        self._path, self._segment_bytes, self._max_segments = path, segment_bytes, max_segments
        self._file = open_unbuffered(path)
        self._size = os.fstat(self._file.fileno()).st_size

    def write(self, lines: bytes) -> None:
        """Write complete lines. Raises OSError, for example if the disk is full."""
        if self._size and self._size + len(lines) > self._segment_bytes:
            self._rotate()
        self._size += self._file.write(lines) or 0

    def close(self) -> None:
        """Close the current segment."""
        self._file.close()

    def _rotate(self) -> None:
        """Begin a new segment. Raises OSError; later writes then still go to the old segment."""
        full = segments(self._path)
        fresh = open_unbuffered(new_path := self._path.with_name(f"{self._path.name}.new"))
        move(self._path, segment_path(self._path, full[-1] + 1 if full else 1))
        move(new_path, self._path)
        self._file.close()
        self._file, self._size = fresh, 0
        for number in full[1 : len(full) - self._max_segments + 3]:  # 3: the first, the one just filled, the new one
            remove_file(segment_path(self._path, number))
