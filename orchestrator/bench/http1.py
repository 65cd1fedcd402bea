"""The part of HTTP/1.1 that a load client reads: a response head, and a body by chunks, by length or to the end.

Incremental and without I/O: bytes in, payload out. The grammar (RFC 9112) is llhttp's, the parser of Node.js, through
httptools.
"""

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MOST_WITHOUT_PAYLOAD: Final = 65536  # bytes: a head, its trailers, or what stands between two pieces of the body


class MalformedError(Exception):
    """What came back is not HTTP/1.1."""


class Framing:
    """Takes one response apart."""

    def __init__(self) -> None:
        """Wait for a head."""
        self.status = 0
        self.keep_alive = True
        self.begun = False  # whether anything has come back
        self.complete = False  # whether the whole message is here
        self._sized = False
        self._to_end = False
        self._without_payload = 0
        self._payload: list[bytes] = []
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """Take `data` and return the payload in it. Raises MalformedError."""
        self.begun = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise MalformedError(f"not an HTTP/1.1 response: {error.__context__ or error}") from error
        # Nothing is kept: parser and framing hold each other, and no such cycle is collected while a load runs.
        payload, self._payload = self._payload, []
        if payload:
            self._without_payload = 0
            return payload[0] if len(payload) == 1 else b"".join(payload)
        self._without_payload += len(data)
        if self._without_payload > _MOST_WITHOUT_PAYLOAD:
            raise MalformedError("more than 64 KiB without a byte of the answer")
        return b""

    def closed(self) -> bool:
        """Take note that the peer closed; whether the message is complete with that."""
        self.complete = self.complete or self._to_end
        return self.complete

    def on_message_begin(self) -> None:
        """Called by the parser, as what follows."""
        if self.complete:
            raise MalformedError("bytes after the end of the answer")
        self._sized = False

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - the parser itself reads the value
        """A header says where the body ends."""
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._sized = True

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        self._to_end = self.status >= 200 and not self._sized

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without its framing."""
        self._payload.append(data)

    def on_message_complete(self) -> None:
        """The message has ended; one of status 1xx announces the answer and is not it (RFC 9110, 15.2)."""
        self.complete = self.status >= 200
