"""Streamed responses: a parser of server-sent events, and token counts read from an event without parsing its JSON.

Parsing the JSON of every event would take most of a load client's CPU time. Each event is therefore only searched for
the two facts needed immediately: whether it contains text, and the number of tokens so far.
"""

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.core.secrets import excerpt
from orchestrator.engine.responses import (
    MAX_RESPONSE_BYTES,
    Json,
    UnexpectedResponseError,
    finished,
    get_object,
    get_objects,
    native_ending,
    number,
    optional_number,
    optional_text,
    read_object,
)

DONE: Final = b"[DONE]"  # the last event of a complete response
MAX_EVENT_BYTES: Final = MAX_RESPONSE_BYTES  # sglang's own API repeats the whole text in each event
_END: Final = "the end of the stream"
_MAX_SHOWN: Final = 300  # characters of an error
_MAX_TOKENS: Final = 1 << 26  # per prompt or answer; keeps sums plausible

# This key cannot occur inside a JSON string, where its quotes would be escaped.
_COUNT_KEY: Final = b'"completion_tokens":'
_COUNT: Final = re.compile(rb"\s*(\d{1,9})\b")
_TEXT: Final = re.compile(rb'"text":\s*"[^"]')
# `output_ids` in sglang's own API, cumulative or new; `token_ids` in completions with `return_token_ids`, only new
# (sglang from 0.5.18, vLLM). The first event of vLLM and sglang also has `prompt_token_ids`, which does not match.
_IDS: Final = re.compile(rb'"(?:output|token)_ids":\s*\[([\d,\s]*)\]')
_NO_CHOICES: Final = re.compile(rb'"choices":\s*\[\s*\]')
_ERROR: Final = re.compile(rb'"error"\s*:(?!\s*null\b)')  # the event may have other keys
_ERROR_TYPE: Final = re.compile(rb"event:[ \t]*error[ \t]*")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The token counts of one request, as reported by the server."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None  # None if not reported
    finish_reason: str | None


class SseParser:
    """A parser of server-sent events in chunks of any size (WHATWG HTML, 9.2.6); returns only the data fields."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        """Begin before the first event."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that `data` completes.

        Raises UnexpectedResponseError for an error event or an event of more than MAX_EVENT_BYTES.
        """
        if b"\r" in data:
            data = data.replace(b"\r", b"")  # a carriage return inside JSON is escaped
        if self._rest:
            searched = len(self._rest) - 1  # search each byte only once: earlier bytes contain no end of an event
            self._rest += data
            if self._rest.find(b"\n\n", max(searched, 0)) < 0:
                self._require_end()
                return []
            data = bytes(self._rest)
        *events, rest = data.split(b"\n\n")
        self._rest = bytearray(rest)
        self._require_end()
        return [content for event in events if (content := _data_of(event))]

    def _require_end(self) -> None:
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UnexpectedResponseError(f"an event of the stream is longer than {MAX_EVENT_BYTES >> 20} MiB")


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    if b"event:" in event and any(map(_ERROR_TYPE.fullmatch, event.split(b"\n"))):
        raise UnexpectedResponseError(f"the stream contains an error: {excerpt(b' '.join(lines), _MAX_SHOWN)}")
    return b"\n".join(lines)


def is_error(event: bytes) -> bool:
    """Return whether an event reports an error."""
    return b'"error"' in event and _ERROR.search(event) is not None


def has_usage(event: bytes) -> bool:
    """Return whether an event has token counts."""
    return _COUNT_KEY in event


def has_choices(event: bytes) -> bool:
    """Return whether an event belongs to the answer; a final event with only counts has empty `choices`."""
    return _NO_CHOICES.search(event) is None


def tokens_so_far(event: bytes) -> int | None:
    """Return the number of output tokens up to an event, None if the event has no count."""
    at = event.rfind(_COUNT_KEY)
    count = _COUNT.match(event, at + len(_COUNT_KEY)) if at >= 0 else None
    return int(count[1]) if count else None


def carries_text(event: bytes) -> bool:
    """Return whether an event contains text."""
    return _TEXT.search(event) is not None


def ids_in(event: bytes) -> bytes:
    """Return the token ids of the answer in an event, as the inside of a JSON array; may be empty."""
    match = _IDS.search(event)
    return match[1].strip() if match else b""


def read_usage(counted: bytes, last: bytes) -> Usage:
    """Parse a request's usage from its last event with counts, `counted`, and its last event with an answer, `last`.

    Raises UnexpectedResponseError.
    """
    data = read_object(counted, path=_END)
    usage = (
        _native_usage(get_object(data, "meta_info"))
        if "meta_info" in data
        else _openai_usage(get_object(data, "usage"), last)
    )
    if (usage.cached_tokens or 0) > usage.prompt_tokens:
        raise UnexpectedResponseError(
            f"the server reports {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens as cached"
        )
    if (tokens := max(usage.prompt_tokens, usage.output_tokens)) > _MAX_TOKENS:
        raise UnexpectedResponseError(f"the server reports {tokens} tokens for one request, more than {_MAX_TOKENS}")
    return usage


def _native_usage(meta: Json) -> Usage:
    return Usage(
        prompt_tokens=number(meta, "prompt_tokens"),
        output_tokens=number(meta, "completion_tokens"),
        cached_tokens=optional_number(meta, "cached_tokens"),
        finish_reason=native_ending(meta),
    )


def _openai_usage(usage: Json, last: bytes) -> Usage:
    # missing if 0, even with --enable-cache-report (sglang 0.5.14, openai/usage_processor.py)
    details = get_object(usage, "prompt_tokens_details") if usage.get("prompt_tokens_details") is not None else {}
    choices = get_objects(read_object(last, path=_END), "choices") if last else []
    return Usage(
        prompt_tokens=number(usage, "prompt_tokens"),
        output_tokens=number(usage, "completion_tokens"),
        cached_tokens=optional_number(details, "cached_tokens"),
        finish_reason=finished(optional_text(choices[0], "finish_reason")) if choices else None,
    )
