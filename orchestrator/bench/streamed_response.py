"""One streamed response: the arrival time of each chunk of tokens, and the usage at the end.

During a load, events are only searched for substrings (see `engine.sse`); the last events are parsed at the end.
"""

from typing import Final

from orchestrator.bench.http1 import ResponseFraming
from orchestrator.core.secrets import excerpt
from orchestrator.engine.responses import AbortedResponseError, UnexpectedResponseError
from orchestrator.engine.sse import (
    DONE,
    SseParser,
    Usage,
    carries_text,
    has_choices,
    has_usage,
    ids_in,
    is_error,
    read_usage,
    tokens_so_far,
)

_MAX_ERROR_BYTES: Final = 4096  # bytes of an error response
_MAX_EXCERPT: Final = 300  # characters of a failure example


class StreamedResponse:
    """The streamed answer to one measured request."""

    __slots__ = (
        "_body",
        "_counted",
        "_events",
        "_ids",
        "_keeps_ids",
        "_last",
        "_tokens",
        "chunk_s",
        "chunk_tokens",
        "failure",
        "framing",
        "stream_ended",
    )

    def __init__(self, max_tokens: int, *, keep_ids: bool = False) -> None:
        """Start before the first byte; `max_tokens` is the requested output length."""
        self.framing = ResponseFraming()
        self.chunk_s: list[float] = []  # arrival times of chunks with tokens, on the clock of `feed`
        self.chunk_tokens: list[int | None] = []  # cumulative output tokens, if reported
        self.failure: tuple[str, str] | None = None  # kind, example
        self.stream_ended = False
        self._events = SseParser()
        self._counted = b""  # last event with token counts
        self._last = b""  # last event with a choice
        self._body = b""
        self._tokens = max_tokens
        self._keeps_ids = keep_ids
        self._ids = b""  # token ids of the answer so far, as the inside of a JSON array

    @property
    def answer_ids(self) -> bytes | None:
        """The token ids of the whole answer, as the inside of a JSON array; None if they were not kept or not sent."""
        return self._ids if self._ids and self._ids.count(b",") + 1 == self._tokens else None

    def feed(self, data: bytes, now: float) -> None:
        """Process bytes that arrived at `now` (seconds). Raises MalformedError and UnexpectedResponseError."""
        payload = self.framing.feed(data)
        if self.framing.status != 200:
            self._body += payload
            if len(self._body) > _MAX_ERROR_BYTES:
                self.fail(*self._http_error())
                raise UnexpectedResponseError("the error response is too long")
            return
        for event in self._events.feed(payload):
            self._process_event(event, now)

    def fail(self, kind: str, example: str) -> None:
        """Record why the response is incomplete; only the first reason counts. Secrets are redacted."""
        self.failure = self.failure or (kind, excerpt(example.strip(), _MAX_EXCERPT))

    def finish(self) -> Usage | None:
        """Return the usage at the end; None, with `failure` set, if the response is incomplete."""
        event, last = self._counted, self._last
        self._counted = self._last = b""  # free memory: events of sglang's own API contain the whole text
        if self.framing.status != 200:
            self.fail(*self._http_error())
        elif not self.stream_ended:
            self.fail("cut-short", "the stream ended without `[DONE]`")
        elif not self.chunk_s:
            self.fail("no-tokens", "the stream contains no token")
        if self.failure is not None:
            return None
        try:
            return read_usage(event, last)
        except AbortedResponseError as error:
            self.fail("aborted", str(error))
            return None
        except UnexpectedResponseError as error:
            self.fail("no-usage", f"the last event has no token counts: {event!r} ({error})")
            return None

    def _http_error(self) -> tuple[str, str]:
        return f"http-{self.framing.status}", self._body.decode(errors="replace")

    def _process_event(self, event: bytes, now: float) -> None:
        if event == DONE:
            self.stream_ended = True
            return
        if is_error(event):
            self.fail("stream-error", event[:_MAX_ERROR_BYTES].decode(errors="replace"))
            return
        if counts := has_usage(event):
            self._counted = event
        if not has_choices(event):
            return
        self._last = event
        tokens = tokens_so_far(event) if counts else None
        if self._keeps_ids and (ids := ids_in(event)):
            all_so_far = not self._ids or ids.count(b",") + 1 == tokens
            self._ids = ids if all_so_far else b"%b,%b" % (self._ids, ids)
        if tokens is None and carries_text(event):
            self._record_chunk(now, None)
        elif tokens is not None and tokens > (self.chunk_tokens[-1] or 0 if self.chunk_tokens else 0):
            self._record_chunk(now, tokens)

    def _record_chunk(self, now: float, tokens: int | None) -> None:
        if len(self.chunk_s) >= self._tokens:
            self.fail("too-long", f"more than the {self._tokens} requested tokens")
            raise UnexpectedResponseError("the response is too long")
        self.chunk_s.append(now)
        self.chunk_tokens.append(tokens)
