"""One answer as it streams in: when each chunk of tokens arrived, and what the server says of it at the end.

A chunk is only searched for what must be known at once (see `engine.stream`); the last events are parsed when the
answer has ended, and not kept.
"""

from typing import Final

from orchestrator.bench.http1 import Framing
from orchestrator.core.secrets import excerpt
from orchestrator.engine.responses import AbortedResponseError, UnexpectedResponseError
from orchestrator.engine.sse import (
    DONE,
    SseParser,
    Usage,
    carries_text,
    has_choices,
    has_usage,
    is_error,
    read_usage,
    tokens_so_far,
)

_MOST_SAID: Final = 4096  # bytes of what an endpoint says to a request that it refuses
_SHOWN: Final = 300  # characters of what failed


class StreamedResponse:
    """The streamed answer to one measured request."""

    __slots__ = (
        "_body",
        "_counted",
        "_events",
        "_last",
        "_tokens",
        "chunk_s",
        "chunk_tokens",
        "failure",
        "framing",
        "stream_ended",
    )

    def __init__(self, tokens: int) -> None:
        """Wait for the first byte; `tokens` were asked for."""
        self.framing = Framing()
        self.chunk_s: list[float] = []  # arrival of each chunk that carries tokens, on the clock of `feed`
        self.chunk_tokens: list[int | None] = []  # output tokens so far, where the chunk says so
        self.failure: tuple[str, str] | None = None  # kind, example
        self.stream_ended = False
        self._events = SseParser()
        self._counted = b""  # the last event with a count
        self._last = b""  # the last event of the answer itself
        self._body = b""
        self._tokens = tokens

    @property
    def complete(self) -> bool:
        """Whether the message has ended, well or not."""
        return self.framing.complete

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at `now` (seconds). Raises MalformedError and OddAnswerError."""
        payload = self.framing.feed(data)
        if self.framing.status != 200:
            self._body += payload
            if len(self._body) > _MOST_SAID:
                self.fail(*self._refusal())
                raise UnexpectedResponseError("what it says to that is not read to its end")
            return
        for event in self._events.feed(payload):
            self._take(event, now)

    def fail(self, kind: str, example: str) -> None:
        """Note why there will be no whole answer; the first reason stands. What answers may repeat the key."""
        self.failure = self.failure or (kind, excerpt(example.strip(), _SHOWN))

    def finish(self) -> Usage | None:
        """Read what the last events say; None with `failure` set where the answer is not a whole one."""
        counted, last = self._counted, self._last
        self._counted = self._last = b""  # of sglang's own API they hold the whole text
        if self.framing.status != 200:
            self.fail(*self._refusal())
        elif not self.stream_ended:
            self.fail("cut-short", "the stream ended without `[DONE]`")
        elif not self.chunk_s:
            self.fail("no-tokens", "no event of the stream carries a token")
        if self.failure is not None:
            return None
        try:
            return read_usage(counted, last)
        except AbortedResponseError as error:
            self.fail("given-up", str(error))
            return None
        except UnexpectedResponseError as error:
            self.fail("no-usage", f"the last event gives no token counts: {counted!r} ({error})")
            return None

    def _refusal(self) -> tuple[str, str]:
        return f"http-{self.framing.status}", self._body.decode(errors="replace")

    def _take(self, event: bytes, now: float) -> None:
        if event == DONE:
            self.stream_ended = True
            return
        if is_error(event):
            self.fail("stream-error", event[:_MOST_SAID].decode(errors="replace"))
            return
        if counts := has_usage(event):
            self._counted = event
        if not has_choices(event):
            return
        self._last = event
        tokens = tokens_so_far(event) if counts else None
        if tokens is None and carries_text(event):
            self._arrive(now, None)
        elif tokens is not None and tokens > (self.chunk_tokens[-1] or 0 if self.chunk_tokens else 0):
            self._arrive(now, tokens)

    def _arrive(self, now: float, tokens: int | None) -> None:
        if len(self.chunk_s) >= self._tokens:
            self.fail("too-long", f"more than the {self._tokens} tokens that were asked for")
            raise UnexpectedResponseError("what comes behind them is not read")
        self.chunk_s.append(now)
        self.chunk_tokens.append(tokens)
