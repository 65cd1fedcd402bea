"""Test that the clients turn any response into a value or an error of the tool, and never crash."""

import json
import tracemalloc
from collections.abc import Callable, Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.http1 import MalformedError, ResponseFraming
from orchestrator.bench.streamed_response import StreamedResponse
from orchestrator.engine.client import EngineClient
from orchestrator.engine.metrics import Metric, read_metrics
from orchestrator.engine.responses import (
    UnexpectedResponseError,
    read_chat,
    read_chat_events,
    read_completion_event,
    read_generated,
    read_models,
    read_object,
    read_server_info,
)
from orchestrator.engine.sse import SseParser, read_usage

few = settings(max_examples=60, derandomize=True)  # the same examples in each run
KEYS = (
    "data", "id", "max_model_len", "version", "page_size", "dp_size", "attn_dp_size", "speculative_algorithm",
    "meta_info", "output_ids", "prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason", "type",
    "choices", "message", "delta", "content", "reasoning_content", "text", "usage", "prompt_tokens_details", "error",
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=8),
    max_leaves=20,
)
documents = st.binary(max_size=300) | json_values.map(lambda value: json.dumps(value).encode())
READERS: tuple[Callable[[bytes], object], ...] = (
    lambda data: read_models(read_object(data, path="")),
    lambda data: read_server_info(read_object(data, path="")),
    lambda data: read_generated(read_object(data, path="")),
    lambda data: read_chat(read_object(data, path="")),
    lambda data: read_chat_events([data]),
    read_completion_event,
    lambda data: read_usage(data, data),
)


@pytest.mark.parametrize(
    ("sizes", "dp_ranks"),
    [({}, 1), ({"dp_size": 8}, 8), ({"dp_size": 1, "attn_dp_size": 8}, 8), ({"dp_size": 2, "attn_dp_size": None}, 2)],
)
def test_dp_size_is_read_under_both_names(sizes: dict[str, int], dp_ranks: int) -> None:
    info = read_server_info({"version": "0.5.22", "page_size": 1, **sizes})
    assert info is not None
    assert info.dp_ranks == dp_ranks


class FragmentedBody(httpx.SyncByteStream):
    """A body of 128 KiB in fragments of two bytes, which would take 3 MB if each fragment were stored."""

    def __iter__(self) -> Iterator[bytes]:
        return (b"%02d" % (number % 100) for number in range(1 << 16))


def test_fragmented_response_needs_little_memory() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=FragmentedBody()))
    with EngineClient("http://127.0.0.1:1", key=None, transport=transport) as server:
        tracemalloc.start()
        assert server.metrics() == {}
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("read", READERS)
def test_arbitrary_document_is_parsed_or_rejected(read: Callable[[bytes], object]) -> None:
    @few
    @given(documents)
    def parse_or_reject(data: bytes) -> None:
        try:
            read(data)
        except UnexpectedResponseError as error:
            str(error).encode()  # the message can be printed

    parse_or_reject()


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf{}", '{"id": "é"}'.encode("latin-1"), b'{"id": NaN}', rb'{"id": "\ud800"}',
        b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000,
    ],
    ids=["bom", "latin-1", "NaN", "lone surrogate", "nested lists", "nested objects", "digits"],
)  # fmt: skip
def test_ambiguous_json_is_rejected(data: bytes) -> None:
    with pytest.raises(UnexpectedResponseError):
        read_object(data, path="/v1/models")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "\u202e", "\u2028"])
def test_unprintable_model_name_is_rejected(name: str) -> None:
    with pytest.raises(UnexpectedResponseError, match="expected a name"):
        read_models({"data": [{"id": name}]})


@few
@given(st.dictionaries(st.text("abc-/.0", min_size=1), st.integers(0, 1 << 53) | st.none()))
def test_model_list_round_trips(models: dict[str, int | None]) -> None:
    entries = [{"id": name, "max_model_len": length} for name, length in models.items()]
    assert read_models(read_object(json.dumps({"data": entries}).encode(), path="")) == models


@few
@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"data: ", b"\n\n", b"\r\n", b": ", b"data: {}\n\n"])))
def test_arbitrary_bytes_never_crash_event_parser(fragments: list[bytes]) -> None:
    reader = SseParser()
    assert all(b"\n\n" not in event for fragment in fragments for event in reader.feed(fragment))


def test_fragmented_event_is_parsed_in_linear_time() -> None:
    """A search from the start at each fragment would take a minute."""
    reader = SseParser()
    for _ in range(200_000):
        reader.feed(b"data: x\n")
    (event,) = reader.feed(b"\n")
    assert len(event) == 400_000 - 1


@few
@given(
    st.lists(
        st.binary(max_size=80)
        | st.sampled_from([b"sglang:num_queue_reqs", b"{", b'a="', b"\\", b'"', b"}", b" 1\n", b" NaN\n"])
    )
)
def test_arbitrary_bytes_never_crash_metrics_parser(fragments: list[bytes]) -> None:
    assert all(value is None or abs(value) <= 1 << 53 for value in read_metrics(b"".join(fragments)).values())


@few
@given(
    st.text(st.characters(codec="utf-8", exclude_characters='\n\\"\r'), max_size=20),
    st.integers(0, 1 << 40),
    st.booleans(),
)
def test_metric_is_read_with_any_label(label: str, count: int, has_timestamp: bool) -> None:
    line = (
        f'{Metric.PROMPT_TOKENS}{{model_name="{label}}}\\"\\\\"}} {count}{" 1700000000000" if has_timestamp else ""}\n'
    )
    assert read_metrics(line.encode()) == {Metric.PROMPT_TOKENS: count}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line", [b"sglang:a{\n", b'sglang:a{b="c\n', b"sglang:a{" + b'"' * 999 + b"\n", b"sglang:a " + b" " * 999 + b"\n"]
)
def test_invalid_metric_lines_are_skipped_quickly(line: bytes) -> None:
    assert read_metrics(line * ((4 << 20) // len(line))) == {}


FRAGMENTS = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"Content-Length: 5\r\n", b"\r\n",
    b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n", b"-1\r\n", b"0\r\n\r\n", b"Connection: close\r\n",
    b'data: {"choices":[{"text":"a"}]}\n\n', b"data: [DONE]\n\n",
)  # fmt: skip


@few
@given(st.lists(st.binary(max_size=40) | st.sampled_from(FRAGMENTS), max_size=12))
def test_arbitrary_bytes_never_crash_response_parser(fragments: list[bytes]) -> None:
    answer, framing = StreamedResponse(3), ResponseFraming()
    for feed in (lambda data: answer.feed(data, 0.0), framing.feed):
        try:
            for fragment in fragments:
                feed(fragment)
        except (MalformedError, UnexpectedResponseError):
            continue
    assert (answer.finish() is None) == (answer.failure is not None)
    assert len(answer.chunk_s) <= 3


@few
@given(st.binary(max_size=2000), st.lists(st.integers(1, 50), min_size=1))
def test_chunked_body_is_reassembled_for_any_fragmentation(body: bytes, sizes: list[int]) -> None:
    chunks, at = [], 0
    while at < len(body):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(b"%x\r\n%s\r\n" % (len(body[at : at + size]), body[at : at + size]))
        at += size
    framing = ResponseFraming()
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
    assert b"".join(framing.feed(data[at : at + sizes[0]]) for at in range(0, len(data), sizes[0])) == body
    assert framing.complete


@pytest.mark.parametrize("worker", ["a\x00b", "a\nb", "x" * 70_000, "\ud800"])
def test_invalid_worker_name_is_rejected(worker: str) -> None:
    """The names of a gateway's workers become parts of URL paths."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    with (
        EngineClient("http://127.0.0.1:1", key=None, transport=transport) as server,
        pytest.raises(UnexpectedResponseError),
    ):
        server.status("DELETE", f"/workers/{worker}")
