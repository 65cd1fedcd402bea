"""Streamed answers: server-sent events, and what one event says of tokens without being parsed.

JSON parsing of every event is most of a load client's CPU time, so an event is only searched for the two things that
must be known at once: whether it carries tokens, and how many so far.
"""

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.core.secrets import excerpt
from orchestrator.engine.responses import (
    MOST_BYTES,
    Json,
    UnexpectedResponseError,
    finished,
    get_object,
    get_objects,
    number,
    optional_number,
    optional_text,
    read_object,
)

DONE: Final = b"[DONE]"  # the last event of a whole answer
MOST_EVENT_BYTES: Final = MOST_BYTES  # sglang's own API repeats the whole text in each event
_END: Final = "the end of the stream"
_SHOWN: Final = 300  # characters of an error
_MOST_TOKENS: Final = 1 << 26  # of one prompt or answer; figures are computed from their sums

# Such a key cannot stand inside a JSON string: there its quotes are escaped.
_COUNT_KEY: Final = b'"completion_tokens":'
_COUNT: Final = re.compile(rb"\s*(\d{1,9})\b")
_TEXT: Final = re.compile(rb'"text":\s*"[^"]')
_NO_CHOICES: Final = re.compile(rb'"choices":\s*\[\s*\]')
_ERROR: Final = re.compile(rb'"error"\s*:(?!\s*null\b)')  # beside what else the event may hold
_ERROR_TYPE: Final = re.compile(rb"event:[ \t]*error[ \t]*")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The server's own account of one request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None  # None where the server does not report it
    finish_reason: str | None


class SseParser:
    """Server-sent events out of bytes, however they are cut (WHATWG HTML, 9.2.6); only their data is taken."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        """Wait for the first event."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` makes whole. Raises OddAnswerError for one that never ends."""
        if b"\r" in data:
            data = data.replace(b"\r", b"")  # a carriage return inside JSON is escaped
        if self._rest:
            seen = len(self._rest) - 1  # what came before holds no end: an event in many pieces is searched once
            self._rest += data
            if self._rest.find(b"\n\n", max(seen, 0)) < 0:
                self._require_end()
                return []
            data = bytes(self._rest)
        *events, rest = data.split(b"\n\n")
        self._rest = bytearray(rest)
        self._require_end()
        return [found for event in events if (found := _data_of(event))]

    def _require_end(self) -> None:
        if len(self._rest) > MOST_EVENT_BYTES:
            raise UnexpectedResponseError(f"an event of the stream is longer than {MOST_EVENT_BYTES >> 20} MiB")


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    if b"event:" in event and any(map(_ERROR_TYPE.fullmatch, event.split(b"\n"))):
        raise UnexpectedResponseError(f"the stream holds an error: {excerpt(b' '.join(lines), _SHOWN)}")
    return b"\n".join(lines)


def is_error(event: bytes) -> bool:
    """Whether the server says in its stream that the answer failed."""
    return b'"error"' in event and _ERROR.search(event) is not None


def has_usage(event: bytes) -> bool:
    """Whether the event counts tokens."""
    return _COUNT_KEY in event


def has_choices(event: bytes) -> bool:
    """Whether the event belongs to the answer itself; the one that only counts has no choices."""
    return _NO_CHOICES.search(event) is None


def tokens_so_far(event: bytes) -> int | None:
    """How many tokens the answer has with this event, None where it does not say."""
    at = event.rfind(_COUNT_KEY)
    count = _COUNT.match(event, at + len(_COUNT_KEY)) if at >= 0 else None
    return int(count[1]) if count else None


def carries_text(event: bytes) -> bool:
    """Whether the event brings text."""
    return _TEXT.search(event) is not None


def read_usage(counted: bytes, last: bytes) -> Usage:
    """What the event that `counted` last, and the `last` one of the answer itself, say. Raises OddAnswerError."""
    data = read_object(counted, path=_END)
    usage = (
        _own_usage(get_object(data, "meta_info"))
        if "meta_info" in data
        else _openai_usage(get_object(data, "usage"), last)
    )
    if (usage.cached_tokens or 0) > usage.prompt_tokens:
        raise UnexpectedResponseError(
            f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens are said to be cached"
        )
    if (most := max(usage.prompt_tokens, usage.output_tokens)) > _MOST_TOKENS:
        raise UnexpectedResponseError(
            f"one request is said to have {most} tokens, where at most {_MOST_TOKENS} are believed"
        )
    return usage


def _own_usage(meta: Json) -> Usage:
    reason = get_object(meta, "finish_reason") if meta.get("finish_reason") is not None else {}
    return Usage(
        prompt_tokens=number(meta, "prompt_tokens"),
        output_tokens=number(meta, "completion_tokens"),
        cached_tokens=optional_number(meta, "cached_tokens"),
        finish_reason=finished(optional_text(reason, "type")),
    )


def _openai_usage(usage: Json, last: bytes) -> Usage:
    # absent when 0, even with --enable-cache-report (sglang 0.5.14, openai/usage_processor.py)
    details = get_object(usage, "prompt_tokens_details") if usage.get("prompt_tokens_details") is not None else {}
    choices = get_objects(read_object(last, path=_END), "choices") if last else []
    return Usage(
        prompt_tokens=number(usage, "prompt_tokens"),
        output_tokens=number(usage, "completion_tokens"),
        cached_tokens=optional_number(details, "cached_tokens"),
        finish_reason=finished(optional_text(choices[0], "finish_reason")) if choices else None,
    )
