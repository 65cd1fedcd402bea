"""Server-sent events, read however they are cut, by both clients."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engine import EventReader, OddAnswerError
from orchestrator.engine import stream as stream_module
from orchestrator.engine.stream import is_error, read_usage, tokens_so_far

STREAM = (
    b": a comment\n\n"
    b'data: {"text": "a"}\n\n'
    b'event: message\nid: 1\ndata: {"text":\ndata: "b"}\n\n'
    b"data:[DONE]\r\n\r\n"
    b"data: never finished"
)
EVENTS = [b'{"text": "a"}', b'{"text":\n"b"}', b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_same_events_however_the_bytes_are_cut(cuts: list[int]) -> None:
    reader, places = EventReader(), [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(places)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MOST_EVENT_BYTES", 1000)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 900)
    with pytest.raises(OddAnswerError, match="an event of the stream is longer than"):
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


@pytest.mark.parametrize("event", [b'{"error": {"message": "x"}}', b'{ "error":1}'])
def test_an_error_is_told_from_a_text_that_speaks_of_one(event: bytes) -> None:
    assert is_error(event)
    assert not is_error(b'{"text": "{\\"error\\": 1}"}')


@pytest.mark.parametrize(
    "counted",
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
def test_an_end_in_another_form_is_an_odd_answer(counted: bytes) -> None:
    with pytest.raises(OddAnswerError):
        read_usage(counted, b"")
