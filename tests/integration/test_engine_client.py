"""Test the engine client with hostile servers: they drip, flood, redirect, and close connections."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_runs import order
from waits import TIMEOUT

from orchestrator.bench.benchmark import measure
from orchestrator.core.errors import BenchError, BuildError, StartError
from orchestrator.core.secrets import Secret
from orchestrator.engine import client as client_module
from orchestrator.engine.client import DEFAULT_TIMEOUTS, EngineClient, Timeouts
from orchestrator.engine.responses import NoResponseError, UnauthorizedError, UnexpectedResponseError
from orchestrator.images.registry import Registry
from orchestrator.servers.ask import ask

pytestmark = pytest.mark.timeout(300)  # a dripping response never ends
LIMITS = Timeouts(connect=2, idle=2, total=0.6)
OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that reads each request and then calls `answer`."""
    listening = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    requests.append(_request(connection))
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def _request(connection: socket.socket) -> bytes:
    """Read a whole request: closing a connection with unread data discards the response."""
    read = b""
    while piece := connection.recv(65536):
        read += piece
        head, end, body = read.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return read


def sends(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def drips(begin: bytes, again: bytes) -> Callable[[socket.socket], None]:
    """Send a little at a time, without end, so that no single wait is long."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(again)
            time.sleep(0.02)

    return answer


def floods(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\n")
    while True:
        connection.sendall(b"x" * 65536)
        time.sleep(0.001)  # a client that keeps reading must not fill the memory before its timeout


def json_answer(text: str) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n%s" % (len(text), text.encode())


@contextmanager
def asking(
    answer: Callable[[socket.socket], None], *, key: Secret | None = None, limits: Timeouts = DEFAULT_TIMEOUTS
) -> Iterator[tuple[EngineClient, list[bytes]]]:
    with server(answer) as (url, requests), EngineClient(url, key=key, limits=limits) as client:
        yield client, requests


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (OK, b"a: b\r\n"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b" "),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (OK + b"\r\n", b" "),
    ],
    ids=["head", "body of a length", "chunks", "body without a length"],
)
def test_dripping_response_ends_at_total_timeout(begin: bytes, again: bytes) -> None:
    late = pytest.raises(NoResponseError, match=r"no complete response within 0\.6 s")
    with asking(drips(begin, again), limits=LIMITS) as (client, _), late:
        client.models()


def test_dripping_stream_ends_at_total_timeout() -> None:
    dripping = drips(OK + b"Content-Type: text/event-stream\r\n\r\n", b"data: {}\n\n")
    late = pytest.raises(NoResponseError, match="no complete response within")
    with asking(dripping, limits=LIMITS) as (client, _), late:
        list(client.events("/v1/completions", {}))


@pytest.mark.parametrize("begin", [OK, b"HTTP/1.1 200 ", OK + b"Content-Length: 1000000\r\n\r\n"])
def test_dripping_registry_response_times_out(begin: bytes) -> None:
    with server(drips(begin, b"a")) as (url, _), pytest.raises(BuildError, match=r"no complete response within 0\.6 s"):
        Registry(timeout=0.6).config(f"{url.removeprefix('http://')}/a/b:1")


def test_silent_server_hits_idle_timeout() -> None:
    limits = Timeouts(connect=2, idle=0.3, total=20)
    silent = pytest.raises(NoResponseError, match=r"no response within 0\.3 s")
    with asking(lambda _: time.sleep(1), limits=limits) as (client, _), silent:
        client.models()


def test_oversized_response_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 1 << 20)
    limits = Timeouts(connect=2, idle=2, total=5)
    with (
        asking(floods, limits=limits) as (client, _),
        pytest.raises(UnexpectedResponseError, match="the response has more than 1 MiB"),
    ):
        client.models()


@pytest.mark.parametrize(("status", "hint"), [(b"401 Unauthorized", "has another value"), (b"500 Oh", "deploy status")])
def test_ask_with_wrong_key_hints_at_key(status: bytes, hint: str) -> None:
    with server(sends(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)) as (url, _):
        with pytest.raises(StartError) as rejected:
            [*ask(url, "Count", tokens=8, key=Secret("sk-0123456789"))]
        assert hint in rejected.value.hint


@pytest.mark.parametrize(
    ("key", "message"), [(None, "requires an API key"), (Secret("sk-0123456789"), "rejected this API key")]
)
def test_missing_key_is_distinguished_from_wrong_key(key: Secret | None, message: str, tmp_path: Path) -> None:
    with server(sends(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}")) as (url, _):
        with EngineClient(url, key=key) as client, pytest.raises(UnauthorizedError, match=message):
            client.models()
        with pytest.raises(BenchError, match=message):
            measure(order(SimpleNamespace(url=url), tmp_path, key=key), lambda _text, _transient: None)


def test_unrequested_content_encoding_is_rejected() -> None:
    compressed = OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    with asking(sends(compressed)) as (client, requests), pytest.raises(UnexpectedResponseError, match="not requested"):
        client.models()
    assert b"accept-encoding: identity" in requests[0].lower()


def test_redirect_is_not_followed_with_key() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nLocation: %s/v1/models\r\nContent-Length: 0\r\n\r\n"
    rejected = pytest.raises(UnexpectedResponseError, match="`/v1/models` returned HTTP 307")
    with (
        server(sends(json_answer('{"data": []}'))) as (target, target_requests),
        asking(sends(moved % target.encode()), key=Secret("sk-0123456789")) as (client, _),
        rejected,
    ):
        client.models()
    assert target_requests == []


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    answer = sends(json_answer('{"data": [{"id": "glm-5.2"}]}'))
    with asking(answer, key=Secret("sk-0123456789")) as (client, requests):
        assert client.models() == {"glm-5.2": None}
    assert b"Authorization: Bearer sk-0123456789" in requests[0]


def test_closed_connection_is_no_response() -> None:
    with asking(lambda _: None) as (client, _), pytest.raises(NoResponseError, match=r"no complete HTTP/1\.1 response"):
        client.health()


def test_refused_connection_is_no_response() -> None:
    with server(lambda _: None) as (url, _):
        pass
    with EngineClient(url, key=None) as client, pytest.raises(NoResponseError, match="no connection"):
        client.health()


def test_health_check_retries_on_request() -> None:
    with asking(sends(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")) as (client, requests):
        assert client.health() == 503
        assert client.health(tries=2) == 503
    assert len(requests) == 3


def test_abandoned_stream_is_closed() -> None:
    closed = threading.Event()

    def answer(connection: socket.socket) -> None:
        try:
            drips(OK + b"\r\n", b'data: {"choices": [{"text": "a"}]}\n\n')(connection)
        finally:
            closed.set()

    with asking(answer) as (client, _):
        events = client.events("/v1/completions", {})
        assert next(events) == b'{"choices": [{"text": "a"}]}'
        events.close()  # type: ignore[attr-defined]  # a generator
        assert closed.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b'data: {"choices": []}\n\n', r"ended without `data: \[DONE\]`"),
        (
            b'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n',
            "the stream contains an error.*out of mem",
        ),
    ],
)
def test_failed_stream_raises_its_error(stream: bytes, fault: str) -> None:
    with asking(sends(OK + b"\r\n" + stream)) as (client, _), pytest.raises(UnexpectedResponseError, match=fault):
        list(client.events("/v1/completions", {}))


def test_answer_failing_midstream_raises_an_error() -> None:
    failed = (
        b'data: {"choices": [{"text": "one"}]}\n\ndata: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n'
    )
    with server(sends(OK + b"\r\n" + failed)) as (url, _):
        pieces = ask(url, "Count", tokens=8, key=None)
        assert next(pieces) == "one"
        with pytest.raises(StartError, match="out of memory"):
            next(pieces)
