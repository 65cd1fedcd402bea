"""The lines of a log: out of pieces of output, and those that are new at each look."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.core.files import open_own

MAX_LINE_BYTES: Final = 64 * 1024
CHUNK_BYTES: Final = 1024 * 1024
LONGEST_LINE: Final = 1 << 20  # bytes; a longer one is cut, so that a server that writes no line ends is still read


class LogTail:
    """The new lines of a growing file, at each call, in bounded memory.

    A carriage return ends a line as well (progress bars). A file that is not there yet has no lines; one that was
    truncated or replaced is read from its beginning. An unfinished line waits for its end, at most 64 KiB of it.
    """

    def __init__(self, path: Path) -> None:
        """Read `path` from its beginning."""
        self._path = path
        self._offset = 0
        self._inode = 0
        self._rest = b""

    def __call__(self) -> Iterator[str]:
        """The lines that were completed since the last call."""
        while chunk := self._read():
            *lines, self._rest = re.split(rb"\r\n|\r|\n", self._rest + chunk)
            if len(self._rest) > MAX_LINE_BYTES:
                lines.append(self._rest)
                self._rest = b""
            yield from (line.decode(errors="replace") for line in lines if line)

    def to_end(self) -> Iterator[str]:
        """All new lines of a log that nobody writes to any more, an unfinished last one included."""
        yield from self()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _read(self) -> bytes:
        try:
            file = open_own(self._path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise HostError(f"the log `{self._path}` cannot be read: {error.strerror}") from error
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._rest = status.st_ino, 0, b""
            file.seek(self._offset)
            chunk = file.read(CHUNK_BYTES)
            self._offset += len(chunk)
            return chunk


def split_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    r"""Lines out of pieces of output, without line ends and empty lines; `\r` of a progress bar ends one as well."""
    rest = b""
    for piece in pieces:
        *lines, rest = re.split(rb"[\r\n]+", rest + piece)
        yield from (line for line in lines if line)
        if len(rest) > LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest
