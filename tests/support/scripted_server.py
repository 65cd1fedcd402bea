"""A server with scripted timing, to test the accuracy of benchmarks. Stdlib only.

It streams from /v1/completions and /generate, and counts tokens in `/metrics`; `EngineApi` answers the other paths.
`/flush_cache` also resets the count of requests.
"""

import asyncio
import hashlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ending_server import end_server
from engine_api import EngineApi


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The response to one request."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    status: int = 200
    reset_after_chunks: int | None = None  # then the connection is reset
    error_after_chunks: int | None = None  # then an error event is sent
    split_s: float = 0.0  # seconds between the two halves of each chunk
    usage_at_end_only: bool = False
    stops_after_tokens: int | None = None  # ignores `ignore_eos`
    silent: bool = False  # never responds
    cached_tokens: int | None = None
    claims: int | None = None  # wrong token counts in the final usage
    says: str = "no room"  # error message


@dataclass
class Exchange:
    """The times of one request at the server, on the same monotonic clock as the client's."""

    arrived_s: float  # the request was complete
    chunk_s: list[float] = field(default_factory=list)  # the last byte of each chunk was written
    tokens: int = 0
    ended_s: float | None = None  # the response was complete; None if it never was


@dataclass
class Script:
    """The behavior of the server, and a record of the requests."""

    answer: Callable[[int], Answer] = lambda _: Answer()
    connect_delay_s: float = 0.0  # before the first request of a connection is read
    one_at_a_time_s: float = 0.0  # a queue: each request blocks the server for this long before its first token
    context_length: int = 1_000_000
    model: str = "scripted"
    die_after: int | None = None  # requests after which the server stops
    served: int = 0
    replicas: int = 1
    prefixes: set[bytes] | None = None  # pages in the prefix cache; None: no cache, see `cached_tokens`
    returns_ids: bool = True  # for `return_token_ids`
    flushes: bool = True  # False: /flush_cache fails, as with running requests
    other_engine: bool = False  # lacks sglang's own paths
    pinned: list[int | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)  # HTTP headers of the same requests
    exchanges: list[Exchange] = field(default_factory=list)  # in the order of arrival, with the warm-up
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def forget(self) -> None:
        """Clear the record of the requests."""
        self.served = self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        for record in (self.pinned, self.bodies, self.heads, self.exchanges):
            record.clear()


class ScriptedServer:
    """Serves a script on a free loopback port, in a thread."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._listening.wait()

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._connection, sock=self._socket, limit=1 << 24, ssl=self._tls)
        self._listening.set()
        await self._stopping.wait()
        await end_server(self._server)
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            _, waiting = await asyncio.wait(tasks, timeout=0.1)  # new requests, and closed connections
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0.01)  # closed connections release their sockets

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio sets this only for sockets with an explicit protocol; without it, a first chunk waits 40 ms for an ACK
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.sleep(self.script.connect_delay_s)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                content = await reader.readexactly(int(length[1]) if length else 0)
                _method, path, _ = head.split(b" ", 2)
                if path in {b"/v1/completions", b"/generate"}:
                    self.script.heads.append(head)
                rank = re.search(rb"(?i)x-data-parallel-rank: *(\d+)", head)
                await self._respond(path.decode(), content, writer, rank=int(rank[1]) if rank else None)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:  # the server stops
            writer.transport.abort()
        finally:
            writer.close()

    async def _respond(
        self, path: str, content: bytes, writer: asyncio.StreamWriter, *, rank: int | None = None
    ) -> None:
        script = self.script
        if path in {"/v1/completions", "/generate"}:
            script.served += 1
            if script.die_after is not None and script.served > script.die_after:
                assert self._server is not None
                self._server.close()
                writer.transport.abort()
                return
            script.pinned.append(json.loads(content).get("routed_dp_rank", rank))
            await self._generate(path, content, writer, script.answer(script.served - 1))
            return
        if script.other_engine and path in {"/server_info", "/flush_cache"}:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        if path == "/flush_cache" and not script.flushes:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        if path == "/flush_cache":
            script.served = 0
            if script.prefixes is not None:
                script.prefixes.clear()
        api = EngineApi(model=script.model, context=script.context_length, dp=script.replicas, key="never-to-be-stored")
        answer = api.answer(path, authorization=f"Bearer {api.key}")
        body = (self._metrics() if path == "/metrics" else answer.body()).encode()
        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (answer.status, len(body), body))
        await writer.drain()

    def _metrics(self) -> str:
        script = self.script
        ranks = range(script.replicas if script.other_engine else 0)
        return "".join(f'vllm:num_requests_running{{engine="{rank}"}} 0.0\n' for rank in ranks) + (
            f'sglang:prompt_tokens_total{{model_name="scripted"}} {script.prompt_tokens}\n'
            f'sglang:generation_tokens_total{{model_name="scripted"}} {script.output_tokens}\n'
            f'sglang:cached_tokens_total{{cache_source="device"}} {script.cached_tokens}\n'
            f'sglang:num_queue_reqs{{dp_rank="0"}} {len(self._tasks)}\n'
        )

    async def _generate(self, path: str, content: bytes, writer: asyncio.StreamWriter, answer: Answer) -> None:
        exchange = Exchange(arrived_s=time.monotonic())
        self.script.exchanges.append(exchange)
        request = json.loads(content)
        self.script.bodies.append(content)
        if answer.silent:
            await asyncio.sleep(3600)
        if answer.status != 200:
            body = json.dumps({"message": answer.says}).encode()
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (answer.status, len(body), body))
            return
        if self.script.one_at_a_time_s:
            async with self._busy:
                await asyncio.sleep(self.script.one_at_a_time_s)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        prompt = request.get("input_ids", request.get("prompt"))
        if self.script.prefixes is not None:
            answer = replace(answer, cached_tokens=_cached(self.script.prefixes, prompt))
        if not self.script.returns_ids:
            request.pop("return_token_ids", None)
        if (tokens := await _stream(path, request, writer, answer, exchange)) is not None:
            self.script.prompt_tokens += tokens[0]
            self.script.output_tokens += tokens[1]
            self.script.cached_tokens += answer.cached_tokens or 0
            if self.script.prefixes is not None:
                self.script.prefixes.update(_pages([*prompt, *answer_ids(tokens[1])]))


PAGE = 16  # tokens in a page of the prefix cache


def answer_ids(tokens: int) -> list[int]:
    """Return the ids of every response."""
    return [10 + index % 90 for index in range(tokens)]


def _pages(ids: list[int]) -> list[bytes]:
    """Return a digest of each prefix of whole pages."""
    digest, pages = hashlib.blake2b(), []
    for at in range(0, len(ids) - PAGE + 1, PAGE):
        digest.update(repr(ids[at : at + PAGE]).encode())
        pages.append(digest.copy().digest())
    return pages


def _cached(prefixes: set[bytes], prompt: list[int]) -> int:
    """Return the tokens of the longest cached prefix, without the last token, which is always computed."""
    known = list(takewhile(prefixes.__contains__, _pages(prompt[:-1])))
    return PAGE * len(known)


async def _stream(
    path: str, request: dict[str, object], writer: asyncio.StreamWriter, answer: Answer, exchange: Exchange
) -> tuple[int, int] | None:
    """Send each chunk at its time after the arrival of the request, so that errors do not add up.

    Return the input and output tokens; None if the response was incomplete.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    native = path == "/generate"
    sampling = request["sampling_params"] if native else request
    assert isinstance(sampling, dict)
    prompt = request["input_ids" if native else "prompt"]
    assert isinstance(prompt, list | str)
    total = int(sampling["max_new_tokens" if native else "max_tokens"])
    total = min(total, answer.stops_after_tokens or total)
    cached = answer.cached_tokens or 0
    for index, sent in enumerate(range(0, total, answer.tokens_per_chunk)):
        await asyncio.sleep(begin + answer.ttft_s + index * answer.itl_s - loop.time())
        if index == answer.reset_after_chunks:
            writer.transport.abort()
            return None
        if index == answer.error_after_chunks:
            error = json.dumps({"error": {"message": answer.says}})
            await _send(writer, f"data: {error}\n\ndata: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            return None
        sent_tokens = min(sent + answer.tokens_per_chunk, total)
        event = _event(len(prompt), sent_tokens, total, cached, native=native, counted=not answer.usage_at_end_only)
        if request.get("return_token_ids"):
            ids = answer_ids(total)[sent:sent_tokens]
            event = event.replace('"index": 0', f'"index": 0, "token_ids": {ids}')
        exchange.chunk_s.append(await _send(writer, event, split_s=answer.split_s))
    claimed = (len(prompt), total) if answer.claims is None else (answer.claims, answer.claims)
    usage = {"choices": [], "usage": _usage(*claimed, cached)}
    requested = not native and request.get("stream_options")
    await _send(writer, (f"data: {json.dumps(usage)}\n\n" if requested else "") + "data: [DONE]\n\n")
    exchange.tokens, exchange.ended_s = total, time.monotonic()
    writer.write(b"0\r\n\r\n")
    return len(prompt), total


def _event(prompt: int, sent_tokens: int, total: int, cached: int, *, native: bool, counted: bool) -> str:
    finished = sent_tokens >= total
    if native:
        meta = {
            "prompt_tokens": prompt,
            "completion_tokens": sent_tokens,
            "cached_tokens": cached,
            "finish_reason": {"type": "length"} if finished else None,
        }
        return f"data: {json.dumps({'text': 'x' * sent_tokens, 'meta_info': meta})}\n\n"
    choice = {"index": 0, "text": 'a "completion_tokens":9 b', "finish_reason": "length" if finished else None}
    data: dict[str, object] = {"id": "1", "object": "text_completion", "choices": [choice]}
    data["usage"] = _usage(prompt, sent_tokens, cached) if counted else None
    return f"data: {json.dumps(data)}\n\n"


def _usage(prompt: int, output: int, cached: int) -> dict[str, object]:
    details = {"cached_tokens": cached} if cached else None
    return {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}


async def _send(writer: asyncio.StreamWriter, text: str, *, split_s: float = 0.0) -> float:
    """Write one chunk; return the time just before its last part was written, a lower bound of its arrival."""
    data = text.encode()
    data = b"%x\r\n%s\r\n" % (len(data), data)
    if split_s:
        half = len(data) // 2
        writer.write(data[:half])
        await asyncio.sleep(split_s)
        data = data[half:]
    written_at = time.monotonic()
    writer.write(data)
    return written_at


@contextmanager
def scripted(script: Script, *, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()
