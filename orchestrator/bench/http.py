"""The part of HTTP/1.1 that a load client reads: a response head, and a body by chunks, by length or to the end.

Incremental and without I/O: bytes in, payload out. RFC 9112.
"""

from enum import Enum, auto


class MalformedError(Exception):
    """What came back is not HTTP/1.1."""


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    TRAILER = auto()
    TO_END = auto()
    DONE = auto()


class Framing:
    """Takes one response apart."""

    def __init__(self) -> None:
        """Wait for a head."""
        self.status = 0
        self.keep_alive = True
        self._state = _State.HEAD
        self._buffer = b""
        self._left = 0

    @property
    def begun(self) -> bool:
        """Whether anything has come back."""
        return bool(self._buffer) or self._state is not _State.HEAD

    @property
    def complete(self) -> bool:
        """Whether the whole message is here."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> bytes:
        """Take `data` and return the payload in it. Raises MalformedError."""
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        if self._state is _State.HEAD:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._keep(data)
                return b""
            self._head(data[:end])
            data = data[end + 4 :]
        if self._state is _State.TO_END:
            return data
        return self._by_length(data) if self._state is _State.LENGTH else self._by_chunks(data)

    def closed(self) -> bool:
        """Take note that the peer closed; whether the message is complete with that."""
        if self._state is _State.TO_END:
            self._state = _State.DONE
        return self.complete

    def _keep(self, data: bytes) -> None:
        if len(data) > 65536:
            raise MalformedError("a head or a line of more than 64 KiB")
        self._buffer = data

    def _head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        parts = first.split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise MalformedError(f"not an HTTP/1.1 response: {first[:80]!r}")
        self.status = int(parts[1])
        pairs = (line.partition(b":") for line in lines)
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
        self.keep_alive = parts[0] == b"HTTP/1.1" and headers.get(b"connection") != b"close"
        if headers.get(b"transfer-encoding") == b"chunked":
            self._state = _State.CHUNK_SIZE
        elif (length := headers.get(b"content-length")) is not None:
            self._state, self._left = _State.LENGTH, _number(length, 10)
        else:
            self._state, self.keep_alive = _State.TO_END, False

    def _by_length(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left <= 0:
            self._state = _State.DONE
        return data

    def _by_chunks(self, data: bytes) -> bytes:
        payload: list[bytes] = []
        at = 0
        while at < len(data) and self._state is not _State.DONE:
            if self._state is _State.CHUNK:
                take = min(self._left, len(data) - at)
                payload.append(data[at : at + take])
                at, self._left = at + take, self._left - take
                if not self._left:
                    self._state = _State.CHUNK_SIZE
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._keep(data[at:])
                break
            self._line(data[at:end].strip())
            at = end + 1
        return b"".join(payload)

    def _line(self, line: bytes) -> None:
        if self._state is _State.TRAILER:
            if not line:
                self._state = _State.DONE
        elif line:  # the empty line that ends a chunk's data is skipped
            self._left = _number(line.split(b";", 1)[0], 16)
            self._state = _State.CHUNK if self._left else _State.TRAILER


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise MalformedError(f"not a length: {text[:40]!r}") from error
