"""Test the parsing of server-sent events by both clients, for any fragmentation."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engine import sse as stream_module
from orchestrator.engine.responses import (
    AbortedResponseError,
    UnexpectedResponseError,
    read_chat,
    read_completion_event,
    read_generated,
)
from orchestrator.engine.sse import SseParser, is_error, read_usage, tokens_so_far

STREAM = (
    b": a comment\n\n"
    b'data: {"text": "a"}\n\n'
    b'event: message\nid: 1\ndata: {"text":\ndata: "b"}\n\n'
    b"data:[DONE]\r\n\r\n"
    b"data: never finished"
)
EVENTS = [b'{"text": "a"}', b'{"text":\n"b"}', b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_parsed_for_any_fragmentation(cuts: list[int]) -> None:
    reader, bounds = SseParser(), [0, *sorted(cuts), len(STREAM)]
    fragments = [STREAM[a:b] for a, b in pairwise(bounds)]
    assert [event for fragment in fragments for event in reader.feed(fragment)] == EVENTS


def test_endless_event_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_EVENT_BYTES", 1000)
    reader = SseParser()
    reader.feed(b"data: " + b"x" * 900)
    with pytest.raises(UnexpectedResponseError, match="an event of the stream is longer than"):
        reader.feed(b"x" * 900)


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        (b'{"usage":{"completion_tokens":17,"total_tokens":20}}', 17),
        (b'{"usage": {"completion_tokens": 17}}', 17),
        (b'{"text":"\\"completion_tokens\\":900","usage":{"completion_tokens":2}}', 2),
        (b'{"usage":{"completion_tokens":null}}', None),
        (b'{"usage":{"completion_tokens":"many"}}', None),
        (b'{"usage":{"completion_tokens":' + b"1" * 5000 + b"}}", None),
        (b'{"text":"a"}', None),
    ],
)
def test_tokens_are_counted_without_parsing(event: bytes, tokens: int | None) -> None:
    assert tokens_so_far(event) == tokens


@pytest.mark.parametrize(
    "event",
    [b'{"error": {"message": "x"}}', b'{ "error":1}', b'{"id":"1","choices":[{"text":"a"}],"error":{"code":500}}'],
)
def test_error_event_is_distinguished_from_error_text(event: bytes) -> None:
    assert is_error(event)
    assert not is_error(b'{"text": "{\\"error\\": 1}"}')
    assert not is_error(b'{"choices":[{"text":"a"}],"error": null}')
    assert not is_error(b'{"text":"error"}')


@pytest.mark.parametrize("line", ["event: error", "event:error", "event: error\r"])
def test_error_event_type_is_recognized(line: str) -> None:
    with pytest.raises(UnexpectedResponseError, match="the stream contains an error: out of memory"):
        SseParser().feed(f"{line}\ndata: out of memory\n\n".encode())
    assert SseParser().feed(b"event: token\ndata: event: error\n\n") == [b"event: error"]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_aborted_response_is_rejected(reason: str) -> None:
    """vLLM uses `error`, and both engines use `abort`."""
    choice = f'"choices":[{{"text":"a","index":0,"message":{{"content":"a"}},"finish_reason":"{reason}"}}]'
    usage = '"usage":{"prompt_tokens":1,"completion_tokens":1}'
    meta = f'{{"prompt_tokens":1,"completion_tokens":1,"cached_tokens":0,"finish_reason":{{"type":"{reason}"}}}}'
    native = f'{{"meta_info":{meta},"output_ids":[1]}}'.encode()
    openai = f"{{{choice},{usage}}}".encode()
    for read in (
        lambda: read_completion_event(openai),
        lambda: read_usage(openai, openai),
        lambda: read_usage(native, b""),
        lambda: read_generated(json.loads(native)),
        lambda: read_chat(json.loads(openai)),
    ):
        with pytest.raises(AbortedResponseError, match=f"`finish_reason` is `{reason}`"):
            read()


@pytest.mark.parametrize(
    "usage",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"usage": {"prompt_tokens": []}}',
        b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": "many"}}}',
        b'{"meta_info": {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": "stop"}}',
        b"\xff",
    ],
)
def test_malformed_usage_is_rejected(usage: bytes) -> None:
    with pytest.raises(UnexpectedResponseError):
        read_usage(usage, b"")
