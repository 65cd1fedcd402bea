"""Test the HTTP client of the benchmark."""

import gc
import tracemalloc

import pytest

from orchestrator.bench.connection import Connections
from orchestrator.bench.http1 import MalformedError, ResponseFraming
from orchestrator.bench.load_generator import PlannedLoad, PlannedRequest, _complete, _Sender
from orchestrator.bench.streamed_response import StreamedResponse
from orchestrator.core.errors import UsageError
from orchestrator.core.url import Address

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def completion(tokens: int, text: str = "x", finish: str = "null") -> str:
    return (
        f'{{"choices":[{{"index":0,"text":"{text}","finish_reason":{finish}}}],'
        f'"usage":{{"prompt_tokens":7,"completion_tokens":{tokens},"total_tokens":9}}}}'
    )


RESPONSE = (
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


TOKENS = 6  # requested


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(RESPONSE)])
def test_response_is_parsed_for_any_fragmentation(size: int) -> None:
    answer = StreamedResponse(TOKENS)
    for at in range(0, len(RESPONSE), size):
        answer.feed(RESPONSE[at : at + size], float(at))
    usage = answer.finish()
    assert answer.framing.complete
    assert answer.chunk_tokens == [1, 4, 6]
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (7, 6, 3)
    assert usage.finish_reason == "length"


def test_chunk_timestamp_is_arrival_of_last_byte() -> None:
    answer = StreamedResponse(TOKENS)
    first = HEAD + chunk(completion(1))
    answer.feed(first[:-6], 1.0)
    answer.feed(first[-6:], 2.0)
    assert answer.chunk_s == [2.0]


def test_token_counts_in_response_text_are_ignored() -> None:
    answer = StreamedResponse(TOKENS)
    answer.feed(HEAD + chunk(completion(2, text='\\"completion_tokens\\":900')), 0.0)
    assert answer.chunk_tokens == [2]


def test_only_chunks_with_text_count_without_usage() -> None:
    answer = StreamedResponse(TOKENS)
    for text in ("", "a", "b"):
        answer.feed(
            (HEAD if not answer.framing.has_data else b"") + chunk(f'{{"choices": [{{"text": "{text}"}}]}}'), 1.0
        )
    assert answer.chunk_tokens == [None, None]


def test_native_sglang_response_is_parsed() -> None:
    meta = '{"prompt_tokens":7,"completion_tokens":2,"cached_tokens":0,"finish_reason":{"type":"length","length":2}}'
    answer = StreamedResponse(TOKENS)
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
        (HEAD + chunk(completion(1, finish='"abort"')) + chunk("[DONE]"), "aborted"),
        (HEAD + chunk('{"choices":[{"text":"a"}]}') + chunk("[DONE]") + b"0\r\n\r\n", "no-usage"),
        (HEAD + chunk(completion(0, text="")) + chunk("[DONE]") + b"0\r\n\r\n", "no-tokens"),
        (HEAD + chunk('{"choices":[],"usage":{}}') + chunk("[DONE]") + b"0\r\n\r\n", "no-tokens"),
        (HEAD + chunk(completion(1).replace(":7", ':"many"')) + chunk("[DONE]") + b"0\r\n\r\n", "no-usage"),
    ],
)
def test_incomplete_response_fails_with_named_kind(data: bytes, kind: str) -> None:
    answer = StreamedResponse(TOKENS)
    answer.feed(data, 0.0)
    assert answer.finish() is None
    assert answer.failure is not None
    assert answer.failure[0] == kind


def test_body_ends_by_length_close_or_empty() -> None:
    by_length, to_end, empty = ResponseFraming(), ResponseFraming(), ResponseFraming()
    assert by_length.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab") == b"ab"
    assert by_length.complete
    assert by_length.keep_alive
    assert to_end.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == b"ab"
    assert not to_end.complete
    assert to_end.closed()
    empty.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert empty.complete
    assert not empty.keep_alive


def test_parsed_response_body_is_not_retained() -> None:
    """Garbage collection is off under load, and the counters are read every second."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(20):
            assert (
                len(ResponseFraming().feed(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000))
                == 100_000
            )
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert allocated < 200_000


@pytest.mark.parametrize("size", [1, 25, 1000])
def test_interim_response_is_skipped(size: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
    framing = ResponseFraming()
    payload = b"".join(framing.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert (framing.status, payload, framing.complete) == (200, b"ab", True)


def test_interim_response_alone_is_incomplete() -> None:
    framing = ResponseFraming()
    framing.feed(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert not framing.complete
    assert not framing.closed()


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nab",
        HEAD + b"zz\r\n",
        HEAD + b"-1\r\nabc\r\n",
        HEAD + b"+1\r\na\r\n",
        HEAD + b"1_0\r\n" + b"a" * 16,
        HEAD + b"0x1\r\na\r\n",
        HEAD + b"0\r\n\r\nHTTP/1.1 200 OK\r\n",
        b"x" * 70_000,
    ],
)
def test_malformed_http_is_rejected(data: bytes) -> None:
    with pytest.raises(MalformedError):
        ResponseFraming().feed(data)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"Name: " + b"x" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nName: ", b"x" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"1;", b"extension" * 100),
        (HEAD + b"0\r\n", b"Name: " + b"x" * 1000 + b"\r\n"),
    ],
    ids=["headers", "one header", "interim responses", "a chunk's extension", "trailers"],
)
def test_endless_response_sections_are_rejected(start: bytes, repeated: bytes) -> None:
    framing = ResponseFraming()

    def feed_all() -> None:
        for piece in (start, *[repeated] * 10_000):
            framing.feed(piece)

    with pytest.raises(MalformedError):
        feed_all()


def test_api_key_echoed_in_error_is_redacted() -> None:
    connections = Connections(Address.from_url("http://node:1"), key=None, clock=float)
    sender = _Sender(connections, PlannedLoad(sessions=[], concurrency=1, timeout_s=1))
    planned = PlannedRequest(input_tokens=7, output_tokens=TOKENS)
    answer = StreamedResponse(TOKENS)
    answer.fail("http-500", "no route for Authorization: Bearer wJ4-a-key-of-the-test")
    sender._finish(0, planned, (0.0, 0.0, 1.0), answer, None)
    (record,) = sender.records
    assert "wJ4" not in record.failure_example
    assert "no route" in record.failure_example


@pytest.mark.parametrize(
    ("counts", "expected"), [([None] * 6, ()), ([None, 2, 3], ()), ([1, 2, 3], (1, 2, 3)), ([2, 5], (2, 5))]
)
def test_missing_token_counts_are_dropped(counts: list[int | None], expected: tuple[int, ...]) -> None:
    assert tuple(_complete(counts)) == expected


@pytest.mark.parametrize(
    "url", ["http://" + "a" * 64, "http://a..b", "http://x:99999", "http://[::1", "http://", "ftp://x"]
)
def test_invalid_endpoint_url_is_rejected(url: str) -> None:
    """An impossible hostname once caused an internal error at the lookup."""
    with pytest.raises(UsageError, match=r"is not (a|the) URL"):
        Address.from_url(url)


@pytest.mark.parametrize(
    "url", ["http://x", "http://my_node:8000", "http://[fe80::1]:1", "https://b\xfccher.example/v"]
)
def test_valid_endpoint_url_is_accepted(url: str) -> None:
    assert Address.from_url(url).host
