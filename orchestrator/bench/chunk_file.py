"""The times of the chunks of a load in a temporary file: memory does not grow with the length of the answers."""

import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, Generic, TypeVar, overload

Value = TypeVar("Value", float, int)


class ChunkFile:
    """A temporary file of arrays; it is closed with the last sequence that reads it."""

    def __init__(self) -> None:
        """Begin without a file: the first array makes it."""
        self._file: IO[bytes] | None = None
        self._size = 0

    def save(self, values: "array[Value]") -> Sequence[Value]:
        """Return a sequence of the values that reads them again; the values themselves if the disk is full."""
        content = values.tobytes()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this object
                weakref.finalize(self, self._file.close)  # in a reference cycle, `__del__` may come after the file's
            written = os.pwrite(self._file.fileno(), content, self._size)
        except OSError:
            return values
        if written < len(content) or not values:
            return values
        saved = _SavedValues(self, values.typecode, self._size, len(values), values[0])
        self._size += written
        return saved

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset`."""
        return os.pread(self._file.fileno(), size, offset) if self._file is not None else b""


class _SavedValues(Sequence[Value], Generic[Value]):
    """Values in a file. Their number and the first one are read without it."""

    __slots__ = ("_file", "_first", "_length", "_offset", "_type")

    def __init__(self, file: ChunkFile, type_: str, offset: int, length: int, first: Value) -> None:
        self._file, self._type, self._offset, self._length = file, type_, offset, length
        self._first: Value = first

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Value]:
        return iter(self._read())

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | Sequence[Value]:
        return self._first if index == 0 else self._read()[index]

    def _read(self) -> "array[Value]":
        values: array[Value] = array(self._type)
        values.frombytes(self._file.read(self._length * values.itemsize, self._offset))
        return values
