"""The files of a log with a bound: `server.log` is written to, a full one becomes `server.log.1`, then `server.log.2`.

The first piece stays, as it tells how a server was started and which kernels it found, and so do the newest ones; what
was written between them goes.
"""

import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Final

from orchestrator.core.files import move, open_unbuffered, remove_file

SEGMENT_BYTES: Final = 128 << 20  # bytes; a server at 50 requests a second writes one in a day
MAX_SEGMENTS: Final = 8  # pieces, the one that is written to among them

Opener = Callable[[str, int], int]


def segment_path(log: Path, number: int) -> Path:
    """Where the full piece of that number lies, counted from 1."""
    return log.with_name(f"{log.name}.{number}")


def segments(log: Path) -> tuple[int, ...]:
    """The numbers of the full pieces that are there, in the order in which they were written."""
    try:
        names = [path.name for path in log.parent.iterdir()]
    except OSError:
        return ()
    ends = (name.removeprefix(f"{log.name}.") for name in names if name.startswith(f"{log.name}."))
    return tuple(sorted(int(end) for end in ends if end.isascii() and end.isdigit() and not end.startswith("0")))


class RotatingLog:
    """A log that takes `most` pieces of `piece` bytes on the disk, however much is written."""

    def __init__(self, path: Path, opener: Opener, *, piece: int = SEGMENT_BYTES, most: int = MAX_SEGMENTS) -> None:
        """Go on writing at the end of `path`. Raises OSError where it cannot be opened."""
        self._path, self._opener, self._piece, self._most = path, opener, piece, most
        self._file = self._open(path)
        self._size = os.fstat(self._file.fileno()).st_size

    def write(self, lines: bytes) -> None:
        """Write whole lines. Raises OSError, as for a full disk."""
        if self._size and self._size + len(lines) > self._piece:
            self._turn()
        self._size += self._file.write(lines) or 0

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def _turn(self) -> None:
        """Put the full piece aside and begin another. What fails leaves the old one to be written to."""
        full = segments(self._path)
        fresh = self._open(beside := self._path.with_name(f"{self._path.name}.new"))
        move(self._path, segment_path(self._path, full[-1] + 1 if full else 1))
        move(beside, self._path)
        self._file.close()
        self._file, self._size = fresh, 0
        for number in full[1 : len(full) - self._most + 3]:  # with the first, the one just filled and the fresh one
            remove_file(segment_path(self._path, number))

    def _open(self, path: Path) -> FileIO:
        return open_unbuffered(path, self._opener)
