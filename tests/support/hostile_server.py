"""A hostile server: sglang's API, with rules that break the responses of some paths. Stdlib only.

    python hostile_server.py [--port N] [--served-model-name NAME] [--on RULE]...      (or HOSTILE="RULE RULE …")

A rule is one of

    PATH=NAME         the entry of `BEHAVIORS` with that name: raw bytes, slow or endless responses
    PATH streamed=…   the same, but only for requests for a stream
    PATH#KEY=TEXT     the normal response, and each event of a stream, with raw TEXT (JSON or not) at a key such as
                      `choices.0.text`; without TEXT the key is missing
    PATH=TEXT         TEXT as the body of a 200; an event stream if it begins with `data:`

`*` is every path. `POST /rules` replaces the rules with a JSON object. Unknown options are ignored, so that the program
can replace `python -m sglang.launch_server`; it prints the startup lines that `deploy up` waits for.
In a test: `with hostile({"/health": "drip-body"}) as url`.
"""

import argparse
import asyncio
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import chain, repeat

from ending_server import end_server
from engine_api import EngineApi
from waits import TIMEOUT

DRIP = 0.05  # seconds between two pieces of a slow response
MARK = "\N{PILE OF POO}"  # marks the place of raw text in a normal response
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SSE = OK + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TOKEN = b'data: {"choices": [{"text": "a", "delta": {"content": "a"}, "finish_reason": null}], "usage": null}\n\n'

Step = bytes | float  # send these bytes, or wait so many seconds
Behavior = Callable[[], Iterable[Step]]


def then(begin: bytes, again: bytes, interval: float = 0.0) -> Behavior:
    """Send `begin`, and then `again` forever."""
    return lambda: chain([begin], chain.from_iterable(repeat((again, interval) if interval else (again,))))


def once(*pieces: bytes) -> Behavior:
    return lambda: pieces


def body(content: bytes, head: bytes = b"") -> Behavior:
    return once(OK + head + b"Content-Length: %d\r\n\r\n" % len(content), content)


def events(*texts: str) -> Behavior:
    return once(SSE, "".join(f"data: {text}\n\n" for text in texts).encode())


@cache
def bomb() -> Iterable[Step]:
    """Return 1 GB compressed to 1 MB: the same block of zeros 1,024 times, and their checksum."""
    packer = zlib.compressobj(wbits=31)
    first, again = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    end = b"\x03\x00" + (0x5B64C2B0).to_bytes(4, "little") + (1 << 30).to_bytes(4, "little")
    return body(first + again * 1023 + end, b"Content-Encoding: gzip\r\n")()


def many(line: str, count: int, begin: str = "", end: str = "") -> Behavior:
    """Return a body of `count` numbered lines."""

    @cache
    def made() -> Iterable[Step]:
        return body((begin + "".join(line % number for number in range(count)) + end).encode())()

    return made


BEHAVIORS: Mapping[str, Behavior] = {
    "silent": lambda: [3600.0],
    "close": once(),
    "cut-head": once(b"HTTP/1.1 20"),
    "cut-body": once(OK + b"Content-Length: 100\r\n\r\n{"),
    "ssh": once(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "drip-head": then(OK + b"X: ", b"a", DRIP),
    "drip-body": then(OK + b"Content-Length: 1000000\r\n\r\n", b" ", DRIP),
    "drip-chunks": then(CHUNKED, b"1\r\n \r\n", DRIP),
    "drip-stream": then(SSE, b":", DRIP),
    "drip-events": then(SSE, TOKEN, DRIP),
    "100-for-ever": then(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "head-for-ever": then(OK, b"Name: " + b"x" * 1000 + b"\r\n"),
    "header-for-ever": then(OK + b"Name: ", b"x" * 1000),
    "stream-for-ever": then(SSE, TOKEN * 1000),
    "comments-for-ever": then(SSE, b": still here\n\n" * 1000),
    "event-for-ever": then(SSE + b"data: ", b"x" * (1 << 16)),
    "line-for-ever": then(SSE, b"data: x\n" * (1 << 13)),
    "flood": then(OK + b"\r\n", bytes(1 << 20)),
    "flood-length": then(OK + b"Content-Length: 1073741824\r\n\r\n", bytes(1 << 20)),
    "flood-chunks": then(CHUNKED, b"100000\r\n" + bytes(1 << 20) + b"\r\n"),
    "flood-error": then(b"HTTP/1.1 500 No\r\n\r\n", b"x" * (1 << 20)),
    "chunk-negative": then(CHUNKED + b"-1\r\n", b"abc"),
    "chunk-garbage": then(CHUNKED + b"zz\r\n", b"abc"),
    "chunk-huge": then(CHUNKED + b"f" * 40 + b"\r\n", b"abc"),
    "length-negative": once(OK + b"Content-Length: -5\r\n\r\nabc"),
    "length-twice": once(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
    "gzip-bomb": bomb,
    "redirect": once(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"),
    "unavailable": once(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"),
    "html": body(b"<!doctype html><title>Sign in</title><script>alert(1)</script>", b"Content-Type: text/html\r\n"),
    "empty": body(b""),
    "latin-1": body('{"data": [{"id": "mod\xe8le"}]}'.encode("latin-1")),
    "utf-16": body('{"data": [{"id": "tiny"}]}'.encode("utf-16")),
    "bom": body(b"\xef\xbb\xbf" + b'{"data": [{"id": "tiny"}]}'),
    "deep": body(b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep-event": events('{"choices": ' + "[" * 100_000 + "]" * 100_000 + "}", "[DONE]"),
    "wide": many('{"":%d},', 170_000, begin='{"data": [', end="{}]}"),
    "million-models": many('{"id": "model-%d"},', 1_000_000, begin='{"data": [', end='{"id": "tiny"}]}'),
    "million-metrics": many("sglang:generation_tokens_total_%d 1\n", 1_000_000),
    "metrics-unclosed": many("sglang:generation_tokens_total{a%d\n", 300_000),
    "wordy-chat": then(SSE, b'data: {"choices":[{"delta":{"content":"' + b"x" * 2_000_000 + b'"}}]}\n\n'),
    "stream-cut": events('{"choices": [{"text": "a", "delta": {"content": "a"}, "finish_reason": null}]}'),
    "stream-error": events('{"choices": [{"text": "a"}]}', '{"error": {"message": "out of memory"}}', "[DONE]"),
    "stream-error-later": events('{"object": "error", "message": "out of memory", "code": 500}', "[DONE]"),
    "stream-aborted": events('{"choices": [{"text": "a", "finish_reason": "abort"}]}', "[DONE]"),
    "stream-unfinished": events('{"choices": [{"text": "a", "finish_reason": null}]}', "[DONE]"),
    "stream-of-nothing": events("[DONE]"),
    "stream-of-no-text": events('{"choices": [{"text": "", "finish_reason": "stop"}]}', "[DONE]"),
}  # fmt: skip


class HostileServer:
    def __init__(self, rules: Mapping[str, str], *, model: str = "tiny", api: EngineApi | None = None) -> None:
        self._rules = rules
        self._api = api or EngineApi(model=model)
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ", 2)[1].partition("?")[0]
                length = next((line for line in head.lower().split("\r\n") if line.startswith("content-length:")), ":0")
                content = await reader.readexactly(int(length.partition(":")[2]))
                self.asked.append(path)
                if not await self._answer(path, content, writer) or "connection: close" in head.lower():
                    break
            writer.close()
            return
        writer.transport.abort()

    async def _answer(self, path: str, content: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        if path == "/rules":
            self._rules = json.loads(content)
            writer.write(OK + b"Content-Length: 0\r\n\r\n")
            return True
        streamed = f"{path} streamed" if b'"stream": true' in content else path
        text = self._rules.get(streamed, self._rules.get(path, self._rules.get("*")))
        if text is not None:
            stream = text.startswith("data:")
            made = BEHAVIORS.get(text) or (once(SSE, text.encode()) if stream else body(text.encode()))
            for step in made():
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    writer.write(step)
                    await writer.drain()
                    await asyncio.sleep(0)  # `drain` does not yield while the buffer has room
            return False
        answer = self._api.answer(path, content)
        changed = replace(answer, documents=[self._changed(path, document) for document in answer.documents])
        sent, status = changed.body().encode(), answer.status
        if answer.stream:
            writer.write(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(sent), sent))
        else:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(sent), sent))
        await writer.drain()
        return True

    def _changed(self, path: str, document: object) -> str:
        """Return a document as text, with the rules applied."""
        if isinstance(document, str):
            return document
        texts: list[str] = []
        for rule, text in self._rules.items():
            at, _, key = rule.partition("#")
            if key and at in {path, "*"}:
                texts += [text] if _put(document, key.split("."), missing=not text) else []
        whole = json.dumps(document)
        for text in texts:
            whole = whole.replace(json.dumps(MARK), text, 1)
        return whole


def _put(document: object, key: list[str], *, missing: bool) -> bool:
    """Set a key to the mark, or remove it if `missing`; return whether the mark was set."""
    *parents, last = key
    for step in parents:
        inside = document[int(step)] if isinstance(document, list) and int(step) < len(document) else None
        document = document.get(step) if isinstance(document, dict) else inside
    if isinstance(document, list) and int(last) < len(document):
        document[int(last)] = MARK
    elif isinstance(document, dict) and missing:
        document.pop(last, None)
        return False
    elif isinstance(document, dict):
        document[last] = MARK
    else:
        return False
    return True


@contextmanager
def hostile(rules: Mapping[str, str], *, model: str = "tiny", api: EngineApi | None = None) -> Iterator[str]:
    """Serve with these rules in a thread, and yield the URL; `api` gives the normal responses."""
    begun, urls = threading.Event(), []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        server = await asyncio.start_server(
            HostileServer(rules, model=model, api=api).serve, "127.0.0.1", 0, limit=1 << 26
        )
        loops.append((asyncio.get_running_loop(), asyncio.Event()))
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        begun.set()
        await loops[0][1].wait()
        await end_server(server)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # closed connections release their sockets

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert begun.wait(TIMEOUT)
    try:
        yield urls[0]
    finally:
        loops[0][0].call_soon_threadsafe(loops[0][1].set)
        thread.join(30)


async def _main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--served-model-name", default="tiny")
    parser.add_argument("--on", action="append", default=os.environ.get("HOSTILE", "").split())
    options, _ = parser.parse_known_args()
    rules = dict(rule.split("=", 1) for rule in options.on)
    print("server_args=ServerArgs(hostile)", flush=True)
    made = HostileServer(rules, model=options.served_model_name)
    server = await asyncio.start_server(made.serve, "127.0.0.1", options.port, limit=1 << 26)
    print(f"Uvicorn running on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    print("The server is fired up and ready to roll!", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main())
