"""The measured requests of a load, in a temporary file instead of memory."""

import marshal
import os
import tempfile
import weakref
from array import array
from collections.abc import Collection, Iterator
from typing import IO, Final, NamedTuple

_SIZE_BYTES: Final = 8  # size field before each request
_MAX_LIST_BYTES: Final = 4 * 2**20


class RequestRecord(NamedTuple):
    """One request as measured by the client; times in seconds after the start of the measured window."""

    # The arrays come first because they are read separately.
    chunk_s: "array[float]"  # type "d": arrival times of chunks with tokens
    chunk_tokens: "array[int]"  # type "i": cumulative output tokens; empty if not reported with each chunk
    index: int  # type: ignore[assignment]  # in the order of sending; hides the method of a tuple
    scheduled_s: float
    started_s: float
    ended_s: float
    prompt_tokens: int | None  # token counts reported by the server
    output_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    failure: str | None
    failure_example: str
    session: str = ""
    position: int = 0
    is_subagent: bool = False

    @property
    def ok(self) -> bool:
        """Whether the response was complete and of the requested length."""
        return self.failure is None


class RecordFile(Collection[RequestRecord]):
    """Requests in the order in which they ended, in a file that lives as long as this object."""

    def __init__(self) -> None:
        """Begin without a file; the first request creates it."""
        self._file: IO[bytes] | None = None
        self._end = 0
        self._count = 0

    def add(self, record: RequestRecord) -> None:
        """Save a request. Raises OSError if the disk is full."""
        content = marshal.dumps([*record])  # arrays as bytes
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
            weakref.finalize(self, self._file.close)  # in a reference cycle, `__del__` may run after the file's
        self._file.write(len(content).to_bytes(_SIZE_BYTES) + content)
        self._file.flush()
        self._count += 1
        self._end += _SIZE_BYTES + len(content)

    def listed(self) -> Collection[RequestRecord]:
        """Return the requests as a list if they are small, else this file. Metrics read all requests a dozen times."""
        return [*self] if self._end <= _MAX_LIST_BYTES else self

    def __len__(self) -> int:
        return self._count

    def __contains__(self, record: object) -> bool:
        return any(item == record for item in self)

    def __iter__(self) -> Iterator[RequestRecord]:
        offset = 0
        while offset < self._end:
            size = int.from_bytes(self._read(offset, _SIZE_BYTES))
            times, counts, *fields = marshal.loads(self._read(offset + _SIZE_BYTES, size))  # noqa: S302 - of this process
            yield RequestRecord(array("d", times), array("i", counts), *fields)
            offset += _SIZE_BYTES + size

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset) if self._file is not None else b""
