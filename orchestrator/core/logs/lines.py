"""The lines of a log: out of pieces of output, and those that are new at each look.

All of it works on blocks of lines, in memory that does not grow with the log or with its longest line.
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

MAX_LINE_BYTES: Final = 64 * 1024
CHUNK_BYTES: Final = 256 * 1024
LONGEST_LINE: Final = 1 << 20  # bytes
_LEFT_OUT: Final = "(a line of more than 1 MiB is left out)\n"
_BATCH: Final = 256 * 1024  # characters


class LogTail:
    """The new lines of a growing log, at each call, in bounded memory; all of its pieces, in their order.

    A carriage return ends a line as well (progress bars). A file that is not there yet has no lines; one that was
    truncated or replaced is read from its beginning. An unfinished line waits for its end, at most 64 KiB of it.
    """

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        """Read `path` from its beginning; `alone` without the full pieces beside it, which may be somebody else's."""
        self._path, self._alone = path, alone
        self._number = 1  # of the piece that is read, see `log_files`
        self._offset = 0
        self._inode = 0
        self._rest = b""

    def __call__(self) -> "Lines":
        """The lines that were completed since the last call."""
        return Lines(self._blocks())

    def to_end(self) -> "Lines":
        """All new lines of a log that nobody writes to any more, an unfinished last one included."""
        return Lines(chain(self._blocks(), self._unfinished()))

    def _blocks(self) -> Iterator[str]:
        while chunk := self._read():
            data = self._rest + chunk.replace(b"\r", b"\n")
            end = data.rfind(b"\n") + 1
            if len(data) - end > MAX_LINE_BYTES:
                end = len(data)
            self._rest = data[end:]
            if block := _tidy(data[:end]):
                yield block

    def _unfinished(self) -> Iterator[str]:
        rest, self._rest = self._rest, b""
        if block := _tidy(rest):
            yield block

    def _read(self) -> bytes:
        """The next bytes: of the piece that is read, and at its end of the one that was written after it."""
        while True:
            try:
                file, full = self._open()
            except FileNotFoundError:
                return b""
            except OSError as error:
                raise HostError(f"the log `{self._path}` cannot be read: {error.strerror}") from error
            with file:
                status = os.fstat(file.fileno())
                known = status.st_ino == self._inode and status.st_size >= self._offset
                if known or full or not self._later():  # else what was read here has gone, and others came after it
                    if not known:
                        self._inode, self._offset, self._rest = status.st_ino, 0, b""
                    file.seek(self._offset)
                    chunk = file.read(CHUNK_BYTES)
                    self._offset += len(chunk)
                    if chunk or not full:
                        return chunk
            if gone := self._go_on():
                return gone

    def _open(self) -> tuple[BinaryIO, bool]:
        """The piece that is read, and whether it is full. Raises OSError."""
        aside = segment_path(self._path, self._number)
        while not self._alone:
            with suppress(FileNotFoundError):
                return open_private(aside), True
            file = open_private(self._path)
            if not os.path.lexists(aside):  # it has not become full meanwhile
                return file, False
            file.close()
        return open_private(self._path), False

    def _later(self) -> list[int]:
        return [] if self._alone else [number for number in segments(self._path) if number > self._number]

    def _go_on(self) -> bytes:
        """Begin the next piece that is there; a line that says what is not, where some are missing."""
        following = self._number + 1
        self._number = next(iter(self._later()), following)
        self._inode = self._offset = 0
        gone = self._number - following
        return f"\n({gone} x {SEGMENT_BYTES >> 20} MiB of this log are not kept)\n".encode() if gone > 0 else b""


def coalesce(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, more at a time: of a source that gives a line at a time, and has them all already."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= CHUNK_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)


def complete_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    r"""Blocks of whole lines out of pieces of output, as soon as they are whole, without empty lines.

    Each line has its line end; `\r` of a progress bar ends one as well. A line over 1 MiB is left out whole, and a line
    says so: half of it might end or begin within a secret.
    """
    waiting: list[bytes] = []  # pieces of one line
    length = 0
    is_too_long = False
    for each in pieces:
        piece = each.replace(b"\r", b"\n")
        if is_too_long:
            _, line_end, piece = piece.partition(b"\n")
            is_too_long = not line_end
        waiting.append(piece)
        length += len(piece)
        if b"\n" in piece:
            data = b"".join(waiting)
            end = data.rfind(b"\n") + 1
            if block := _tidy(data[:end]):
                yield block
            waiting, length = [data[end:]], len(data) - end
        if length > LONGEST_LINE:
            yield _LEFT_OUT
            waiting, length, is_too_long = [], 0, True
    if block := _tidy(b"".join(waiting)):
        yield block


def redacted(pieces: Iterable[bytes]) -> Iterator[str]:
    """The same lines, secrets removed."""
    return map(redact, complete_lines(pieces))


class Lines(Iterator[str]):
    """The lines of blocks of whole lines, without their ends: one by one, or by blocks, which is quicker."""

    def __init__(self, blocks: Iterable[str]) -> None:
        """Read none of them yet."""
        self.blocks = blocks
        self._lines = chain.from_iterable(filter(None, block.split("\n")) for block in blocks)

    def __iter__(self) -> Iterator[str]:  # noqa: PYI034 - without a step of ours for each line
        return self._lines

    def __next__(self) -> str:
        return next(self._lines)


def batches(lines: Iterable[str]) -> Iterator[str]:
    """Lines by as many at a time as take little memory: a text, in which a line end stands between two of them."""
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
    """The lines of `text` that hold `literal`."""
    at = text.find(literal)
    while at >= 0:
        end = text.find(b"\n", at)
        yield text[text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(text)]
        at = text.find(literal, end) if end >= 0 else -1


def last_lines(text: str, most: int) -> list[str]:
    """The last lines of a text, at most so many."""
    return text.rsplit("\n", most)[-most:]


def _tidy(data: bytes) -> str:
    while data.rfind(b"\n\n") >= 0:  # several times as quick as `in`
        data = data.replace(b"\n\n", b"\n")
    block = data.removeprefix(b"\n").decode(errors="replace")
    return block if block.endswith("\n") or not block else f"{block}\n"
