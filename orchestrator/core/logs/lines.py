"""Lines of output and of growing log files.

All functions work on blocks of lines, in memory that does not grow with the log or its longest line.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from orchestrator.core.errors import HostError
from orchestrator.core.files import open_private
from orchestrator.core.logs.rotation import SEGMENT_BYTES, segment_path, segments
from orchestrator.core.secrets import redact

MAX_PIECE_BYTES: Final = 64 * 1024
CHUNK_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 1 << 20
_OMITTED_LINE: Final = "(a line of more than 1 MiB is left out)\n"
_BATCH: Final = 256 * 1024  # characters


class LogTail:
    """A reader of a growing log with all its segments, in bounded memory; each call returns the new lines.

    A carriage return also ends a line (progress bars). A missing file has no lines; a file that was truncated or
    replaced is read from its beginning. An incomplete line is held back until its end, or up to 64 KiB.
    """

    def __init__(self, path: Path, *, single_file: bool = False) -> None:
        """Begin at the start of `path`; `single_file` ignores full segments next to it, which are of another log."""
        self._path, self._single_file = path, single_file
        self._number = 1  # of the current segment, see `logs/rotation.py`
        self._offset = 0
        self._inode = 0
        self._rest = b""

    def __call__(self) -> "Lines":
        """Return the lines completed since the last call. Iterating raises HostError if the log cannot be read."""
        return Lines(self._blocks())

    def to_end(self) -> "Lines":
        """Return all new lines of a finished log, including an incomplete last line."""
        return Lines(chain(self._blocks(), self._unfinished()))

    def _blocks(self) -> Iterator[str]:
        while chunk := self._read():
            data = self._rest + chunk.replace(b"\r", b"\n")
            end = data.rfind(b"\n") + 1
            if len(data) - end > MAX_PIECE_BYTES:
                end = len(data)
            self._rest = data[end:]
            if block := _tidy(data[:end]):
                yield block

    def _unfinished(self) -> Iterator[str]:
        rest, self._rest = self._rest, b""
        if block := _tidy(rest):
            yield block

    def _read(self) -> bytes:
        """Return the next bytes of the current segment or, at its end, of the next one; empty if there are none."""
        while True:
            try:
                file, full = self._open()
            except FileNotFoundError:
                return b""
            except OSError as error:
                raise HostError(f"cannot read the log `{self._path}`: {error.strerror}") from error
            with file:
                status = os.fstat(file.fileno())
                same_file = status.st_ino == self._inode and status.st_size >= self._offset
                if same_file or full or not self._later():  # otherwise the current segment was removed
                    if not same_file:
                        self._inode, self._offset, self._rest = status.st_ino, 0, b""
                    file.seek(self._offset)
                    chunk = file.read(CHUNK_BYTES)
                    self._offset += len(chunk)
                    if chunk or not full:
                        return chunk
            if gone := self._go_on():
                return gone

    def _open(self) -> tuple[BinaryIO, bool]:
        """Open the current segment; return it and whether it is full. Raises OSError."""
        aside = segment_path(self._path, self._number)
        while not self._single_file:
            with suppress(FileNotFoundError):
                return open_private(aside), True
            file = open_private(self._path)
            if not os.path.lexists(aside):  # the segment has not become full in between
                return file, False
            file.close()
        return open_private(self._path), False

    def _later(self) -> list[int]:
        return [] if self._single_file else [number for number in segments(self._path) if number > self._number]

    def _go_on(self) -> bytes:
        """Go to the next existing segment; return a line about missing segments, empty if there are none."""
        following = self._number + 1
        self._number = next(iter(self._later()), following)
        self._inode = self._offset = 0
        gone = self._number - following
        return f"\n({gone} x {SEGMENT_BYTES >> 20} MiB of this log are not kept)\n".encode() if gone > 0 else b""


def coalesce(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Merge `chunks` into larger chunks, for a source that yields lines one by one without waiting for new ones."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def complete_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    r"""Yield blocks of complete lines from chunks of output, as soon as they are complete, without empty lines.

    Each line has its line end; the `\r` of a progress bar also ends a line. A line over 1 MiB is replaced by a notice,
    because half of it might begin or end within a secret.
    """
    pending: list[bytes] = []  # chunks of one line
    length = 0
    is_too_long = False
    for raw in chunks:
        chunk = raw.replace(b"\r", b"\n")
        if is_too_long:
            _, line_end, chunk = chunk.partition(b"\n")
            is_too_long = not line_end
        pending.append(chunk)
        length += len(chunk)
        if b"\n" in chunk:
            data = b"".join(pending)
            end = data.rfind(b"\n") + 1
            if block := _tidy(data[:end]):
                yield block
            pending, length = [data[end:]], len(data) - end
        if length > MAX_LINE_BYTES:
            yield _OMITTED_LINE
            pending, length, is_too_long = [], 0, True
    if block := _tidy(b"".join(pending)):
        yield block


def redacted(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield blocks of complete lines as `complete_lines` does, with secrets redacted."""
    return map(redact, complete_lines(chunks))


class Lines(Iterator[str]):
    """An iterator over lines without their ends; `blocks` gives the same lines as blocks, which is faster."""

    def __init__(self, blocks: Iterable[str]) -> None:
        """Create an iterator over blocks of complete lines; nothing is read yet."""
        self.blocks = blocks
        self._lines = chain.from_iterable(filter(None, block.split("\n")) for block in blocks)

    def __iter__(self) -> Iterator[str]:  # noqa: PYI034 - avoids a Python call per line
        return self._lines

    def __next__(self) -> str:
        return next(self._lines)


def batches(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines in batches of limited size; each batch is a text of lines separated by line ends."""
    if isinstance(lines, Lines):
        yield from (block.removesuffix("\n") for block in lines.blocks if block)
        return
    batch: list[str] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size > _BATCH:
            yield "\n".join(batch)
            batch, size = [], 0
    if batch:
        yield "\n".join(batch)


def lines_containing(literal: bytes, text: bytes) -> Iterator[bytes]:
    """Yield the lines of `text` that contain `literal`."""
    at = text.find(literal)
    while at >= 0:
        end = text.find(b"\n", at)
        yield text[text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(text)]
        at = text.find(literal, end) if end >= 0 else -1


def last_lines(text: str, count: int) -> list[str]:
    """Return the last lines of a text, at most `count`."""
    return text.rsplit("\n", count)[-count:]


def _tidy(data: bytes) -> str:
    while data.rfind(b"\n\n") >= 0:  # several times faster than `in`
        data = data.replace(b"\n\n", b"\n")
    block = data.removeprefix(b"\n").decode(errors="replace")
    return block if block.endswith("\n") or not block else f"{block}\n"
