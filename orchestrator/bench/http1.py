"""An incremental parser of HTTP/1.1 responses without I/O: bytes in, payload out.

It uses llhttp (RFC 9112), the parser of Node.js, through httptools.
"""

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MAX_BYTES_WITHOUT_PAYLOAD: Final = 65536  # in a head, in trailers, or between two body chunks


class MalformedError(Exception):
    """The response is not valid HTTP/1.1."""


class ResponseFraming:
    """The parser state of one response."""

    def __init__(self) -> None:
        """Start before the response head."""
        self.status = 0
        self.keep_alive = True
        self.has_data = False  # whether any byte arrived
        self.complete = False  # whether the message ended
        self._sized = False
        self._to_end = False
        self._without_payload = 0
        self._payload: list[bytes] = []
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """Parse `data` and return its payload. Raises MalformedError for invalid HTTP."""
        self.has_data = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise MalformedError(f"not an HTTP/1.1 response: {error.__context__ or error}") from error
        # Keep no payload: parser and framing form a reference cycle, and garbage collection is off during a load.
        payload, self._payload = self._payload, []
        if payload:
            self._without_payload = 0
            return payload[0] if len(payload) == 1 else b"".join(payload)
        self._without_payload += len(data)
        if self._without_payload > _MAX_BYTES_WITHOUT_PAYLOAD:
            raise MalformedError("more than 64 KiB without payload")
        return b""

    def closed(self) -> bool:
        """Handle the peer's close; return whether the message is complete."""
        self.complete = self.complete or self._to_end
        return self.complete

    def on_message_begin(self) -> None:
        """Begin a message (parser callback)."""
        if self.complete:
            raise MalformedError("bytes after the end of the response")
        self._sized = False

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - httptools reads the value
        """Note a header that defines the length of the body (parser callback)."""
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._sized = True

    def on_headers_complete(self) -> None:
        """Read status and connection handling from a complete head (parser callback)."""
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        self._to_end = self.status >= 200 and not self._sized

    def on_body(self, data: bytes) -> None:
        """Append a fragment of the body, without framing (parser callback)."""
        self._payload.append(data)

    def on_message_complete(self) -> None:
        """End a message (parser callback). A 1xx message precedes the final response (RFC 9110, 15.2)."""
        self.complete = self.status >= 200
