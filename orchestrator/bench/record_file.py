"""The measured requests of a load. In a long load, the older ones are in a temporary file."""

import contextlib
import marshal
import os
import tempfile
import weakref
from array import array
from collections import deque
from collections.abc import Collection, Iterator
from typing import IO, Final, NamedTuple

_SIZE_BYTES: Final = 8  # size field before each request
_MAX_NEWEST: Final = 4096  # requests in memory, about 3 MB
_MAX_NEWEST_CHUNKS: Final = 2**18  # chunks of these requests, 3 MB


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
    """Requests in the order in which they ended: the newest in memory, older ones in a temporary file.

    The file lives as long as this object. The metrics of a point read all requests about a dozen times.
    """

    def __init__(self) -> None:
        """Begin without requests; `add` creates the file when it is needed."""
        self._newest = deque[RequestRecord]()
        self._newest_chunks = 0
        self._file: IO[bytes] | None = None
        self._end = 0
        self._count = 0

    def add(self, record: RequestRecord) -> None:
        """Add a request. Raises OSError if an older one cannot be written, for example on a full disk."""
        self._newest.append(record)
        self._newest_chunks += len(record.chunk_s)
        self._count += 1
        while len(self._newest) > _MAX_NEWEST or self._newest_chunks > _MAX_NEWEST_CHUNKS:
            oldest = self._newest.popleft()  # one at a time: writing many would delay the load
            self._newest_chunks -= len(oldest.chunk_s)
            self._write(oldest)

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
        yield from self._newest

    def _write(self, record: RequestRecord) -> None:
        content = marshal.dumps([*record])  # arrays as bytes
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
            weakref.finalize(self, _close, self._file)  # in a reference cycle, `__del__` may run after the file's
        self._file.write(len(content).to_bytes(_SIZE_BYTES) + content)
        self._file.flush()
        self._end += _SIZE_BYTES + len(content)

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset) if self._file is not None else b""


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # on a full disk, closing fails again to write the last request
        file.close()
