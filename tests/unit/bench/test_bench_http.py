"""The small HTTP client reads whatever way the bytes are cut."""

import pytest

from orchestrator.bench.answer import Answer
from orchestrator.bench.connection import Address, Connections
from orchestrator.bench.drive import _Desk
from orchestrator.bench.http import Framing, MalformedError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def completion(tokens: int, text: str = "x", finish: str = "null") -> str:
    return (
        f'{{"choices":[{{"index":0,"text":"{text}","finish_reason":{finish}}}],'
        f'"usage":{{"prompt_tokens":7,"completion_tokens":{tokens},"total_tokens":9}}}}'
    )


WHOLE = (
    HEAD
    + chunk(completion(1))
    + chunk(completion(4, text=""))  # an incomplete character: three tokens, no text yet
    + chunk(completion(6, finish='"length"'))
    + chunk(
        '{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":3}}}'
    )
    + chunk("[DONE]")
    + b"0\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(WHOLE)])
def test_an_answer_is_read_however_it_is_cut(size: int) -> None:
    answer = Answer()
    for at in range(0, len(WHOLE), size):
        answer.feed(WHOLE[at : at + size], float(at))
    usage = answer.finish()
    assert answer.complete
    assert answer.chunk_tokens == [1, 4, 6]
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (7, 6, 3)
    assert usage.finish_reason == "length"


def test_a_chunk_is_stamped_when_its_last_byte_came() -> None:
    answer = Answer()
    first = HEAD + chunk(completion(1))
    answer.feed(first[:-6], 1.0)
    answer.feed(first[-6:], 2.0)
    assert answer.chunk_s == [2.0]


def test_counts_are_not_read_from_the_text() -> None:
    answer = Answer()
    answer.feed(HEAD + chunk(completion(2, text='\\"completion_tokens\\":900')), 0.0)
    assert answer.chunk_tokens == [2]


def test_without_counts_only_chunks_with_text_carry_tokens() -> None:
    answer = Answer()
    for text in ("", "a", "b"):
        answer.feed((HEAD if not answer.framing.begun else b"") + chunk(f'{{"choices": [{{"text": "{text}"}}]}}'), 1.0)
    assert answer.chunk_tokens == [None, None]


def test_sglangs_own_api() -> None:
    meta = '{"prompt_tokens":7,"completion_tokens":2,"cached_tokens":0,"finish_reason":{"type":"length","length":2}}'
    answer = Answer()
    answer.feed(HEAD + chunk(f'{{"text":"ab","meta_info":{meta}}}') + chunk("[DONE]") + b"0\r\n\r\n", 1.0)
    usage = answer.finish()
    assert usage is not None
    assert (usage.output_tokens, usage.cached_tokens, usage.finish_reason) == (2, 0, "length")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nno ro", "http-400"),
        (HEAD + chunk('{"error": {"message": "out of memory"}}') + chunk("[DONE]") + b"0\r\n\r\n", "stream-error"),
        (HEAD + chunk(completion(1)) + b"0\r\n\r\n", "cut-short"),
        (HEAD + chunk('{"choices":[{"text":"a"}]}') + chunk("[DONE]") + b"0\r\n\r\n", "no-usage"),
    ],
)
def test_what_is_not_a_whole_answer_fails_by_name(data: bytes, kind: str) -> None:
    answer = Answer()
    answer.feed(data, 0.0)
    assert answer.finish() is None
    assert answer.failure is not None
    assert answer.failure[0] == kind


def test_the_three_ways_a_body_ends() -> None:
    by_length, to_end, empty = Framing(), Framing(), Framing()
    assert by_length.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab") == b"ab"
    assert by_length.complete
    assert by_length.keep_alive
    assert to_end.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == b"ab"
    assert not to_end.complete
    assert to_end.closed()
    empty.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert empty.complete
    assert not empty.keep_alive


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-OpenSSH\r\n\r\n", HEAD + b"zz\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"x" * 70_000],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        Framing().feed(data)


def test_a_key_that_an_endpoint_repeats_in_its_error_is_not_kept() -> None:
    connections = Connections(Address.from_url("http://node:1"), key=None, clock=float)
    desk = _Desk(connections, timeout_s=1, on_end=lambda _: None)
    answer = Answer()
    answer.fail("http-500", "no route for Authorization: Bearer wJ4-a-key-of-the-test")
    desk._ended.append((0, 0.0, 0.0, 1.0, answer))
    (sample,) = desk.samples()
    assert "wJ4" not in sample.failure_example
    assert "no route" in sample.failure_example
