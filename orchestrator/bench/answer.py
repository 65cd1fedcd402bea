"""One answer as it streams in: when each chunk of tokens arrived, and what the server says of it at the end.

JSON parsing of every chunk is most of a load client's CPU time, so a chunk is only searched for the two things that
must be known at once - does it carry tokens, and how many so far; the last events are parsed when the run is over.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from orchestrator.bench.http import Framing

_COUNT: Final = b'"completion_tokens":'  # cannot occur inside a JSON string: there its quotes are escaped
_TEXT: Final = re.compile(rb'"text":\s*"[^"]')
_NO_CHOICES: Final = re.compile(rb'"choices":\s*\[\s*\]')


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The server's own account of one request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None  # None where the server does not report it
    finish_reason: str | None


class Answer:
    """A streamed answer of `/v1/completions` or `/generate`."""

    __slots__ = (
        "_body",
        "_events",
        "_finish",
        "_tail",
        "chunk_s",
        "chunk_tokens",
        "failure",
        "framing",
        "stream_ended",
    )

    def __init__(self) -> None:
        """Wait for the first byte."""
        self.framing = Framing()
        self.chunk_s: list[float] = []  # arrival of each chunk that carries tokens, on the clock of `feed`
        self.chunk_tokens: list[int | None] = []  # output tokens so far, where the chunk says so
        self.failure: tuple[str, str] | None = None  # kind, example
        self.stream_ended = False
        self._tail = b""
        self._finish = b""
        self._events = b""
        self._body = b""

    @property
    def complete(self) -> bool:
        """Whether the message has ended, well or not."""
        return self.framing.complete

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at `now` (seconds). Raises MalformedError."""
        payload = self.framing.feed(data)
        if self.framing.status != 200:
            self._body = (self._body + payload)[:4096]
            return
        if b"\r" in payload:
            payload = payload.replace(b"\r", b"")  # a carriage return inside JSON is escaped
        text = self._tail + payload if self._tail else payload
        *events, self._tail = text.split(b"\n\n")
        for event in events:
            self._event(event.lstrip(b"\n"), now)

    def fail(self, kind: str, example: str) -> None:
        """Note why there will be no whole answer; the first reason stands."""
        self.failure = self.failure or (kind, example)

    def finish(self) -> Usage | None:
        """Read what the last events say; None with `failure` set where the answer is not a whole one."""
        if self.failure is None and self.framing.status != 200:
            self.fail(f"http-{self.framing.status}", self._body.decode(errors="replace").strip()[:300])
        if self.failure is None and not self.stream_ended:
            self.fail("cut-short", "the stream ended without `[DONE]`")
        if self.failure is not None:
            return None
        try:
            return _usage(self._events, self._finish)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self.fail("no-usage", f"the last event gives no token counts: {self._events[:200]!r} ({error!r})")
            return None

    def _event(self, event: bytes, now: float) -> None:
        if not event.startswith(b"data:"):
            return  # a comment, or a field that carries no answer
        if event.startswith(b"data: [DONE]"):
            self.stream_ended = True
            return
        if event.startswith((b'data: {"error"', b'data:{"error"')):
            self.fail("stream-error", event[5:300].decode(errors="replace").strip())
            return
        at = event.rfind(_COUNT)
        if at >= 0:
            self._events = event
        if _NO_CHOICES.search(event):
            return
        self._finish = event
        if at >= 0:
            tokens = int(event[at + len(_COUNT) : at + len(_COUNT) + 12].split(b",", 1)[0].split(b"}", 1)[0])
            if tokens > (self.chunk_tokens[-1] or 0 if self.chunk_tokens else 0):
                self.chunk_s.append(now)
                self.chunk_tokens.append(tokens)
        elif _TEXT.search(event):
            self.chunk_s.append(now)
            self.chunk_tokens.append(None)


def _usage(event: bytes, finish: bytes) -> Usage:
    data = json.loads(event[5:])
    if "meta_info" in data:  # sglang's own API
        meta = data["meta_info"]
        reason = meta.get("finish_reason")
        return Usage(
            prompt_tokens=int(meta["prompt_tokens"]),
            output_tokens=int(meta["completion_tokens"]),
            cached_tokens=meta.get("cached_tokens"),
            finish_reason=reason["type"] if reason else None,
        )
    usage = data["usage"]
    # absent when 0, even with --enable-cache-report (sglang 0.5.14, openai/usage_processor.py)
    details = usage.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=int(usage["prompt_tokens"]),
        output_tokens=int(usage["completion_tokens"]),
        cached_tokens=details.get("cached_tokens") if details else None,
        finish_reason=json.loads(finish[5:])["choices"][0].get("finish_reason") if finish else None,
    )
