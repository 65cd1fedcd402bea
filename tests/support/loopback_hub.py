"""A Hugging Face hub on loopback, with the endpoints that huggingface_hub needs for a download, and network faults."""

import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ports import free_port

COMMIT = "386bd0e4" + 4 * "89abcdef"  # as the shipped model pins it, in eight digits
_CHUNK_BYTES = 1 << 16


@dataclass
class Hub:
    """One repository served from `directory`, and a record of the requests."""

    repository: str
    directory: Path
    token: str | None = None  # the token that a gated repository requires
    sha: object = COMMIT  # the commit in the responses
    more: list[object] = field(default_factory=list)  # extra entries of the listing
    answers: dict[str, object] = field(default_factory=dict)  # end of a path -> JSON or bytes to respond with
    sizes: dict[str, int] = field(default_factory=dict)  # wrong sizes in the listing
    cuts: dict[str, int] = field(default_factory=dict)  # path -> bytes after which the connection is reset
    down: bool = False  # set after a reset: every download gets 503
    withheld: str = ""  # path whose body is not sent until the hub stops
    over: threading.Event = field(default_factory=threading.Event)
    before_body: Callable[[], object] = lambda: None
    sent: dict[str, int] = field(default_factory=dict)  # path -> bytes of body sent
    ranges: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    url: str = ""

    def listing(self) -> list[Any]:
        paths = sorted(path for path in self.directory.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.directory)) for path in paths]
        own = (
            {"type": "file", "path": n, "size": self.sizes.get(n, p.stat().st_size), "oid": git_sha1(p)}
            for n, p in zip(names, paths, strict=True)
        )
        return [*own, *self.more]


def git_sha1(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


@contextmanager
def serve(hub: Hub, reached: str = "127.0.0.1") -> Iterator[Hub]:
    """Serve the hub for the length of the block; `reached` is its address for other hosts."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server((reached if reached == "127.0.0.1" else "", free_port()), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://{reached}:{server.server_port}"
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Report errors except a closed connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if authorization := self.headers.get("Authorization"):
            self.hub.tokens.add(authorization)
        if self.hub.token and authorization != f"Bearer {self.hub.token}":
            self._json({"error": "gated"}, status=403, headers={"X-Error-Code": "GatedRepo"})
        elif instead := [answer for end, answer in self.hub.answers.items() if path.endswith(end)]:
            self._json(instead[0])
        elif re.fullmatch(rf"/api/models/{self.hub.repository}(/revision/(main|{COMMIT}))?", path):
            gated = "auto" if self.hub.token else False
            self._json({"id": self.hub.repository, "sha": self.hub.sha, "siblings": [], "gated": gated})
        elif path == f"/api/models/{self.hub.repository}/commits/main":
            commit = {"id": COMMIT, "authors": [], "date": "2026-07-01T00:00:00.000Z", "title": "", "message": ""}
            self._json([commit])
        elif path == f"/api/models/{self.hub.repository}/tree/{self.hub.sha}":
            self._json(self.hub.listing())
        elif match := re.fullmatch(rf"/{self.hub.repository}/resolve/{re.escape(str(self.hub.sha))}/(.+)", path):
            self._file(match[1], body=body)
        elif path.startswith(f"/api/models/{self.hub.repository}/revision/"):
            self._json({"error": "no such revision"}, status=404, headers={"X-Error-Code": "RevisionNotFound"})
        else:
            self._json({"error": "no such repository"}, status=404, headers={"X-Error-Code": "RepoNotFound"})

    def _json(self, data: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _file(self, name: str, *, body: bool) -> None:
        path = self.hub.directory / name
        if not path.is_file():
            path = self.hub.directory / "config.json"  # a file that exists only in the listing
        size = path.stat().st_size
        if body and self.hub.down:
            self._json({"error": "unavailable"}, status=503)
            return
        first = 0
        if body and (match := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            first = int(match[1])
            self.hub.ranges.append((name, self.headers["Range"]))
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        for header, value in {"X-Repo-Commit": COMMIT, "ETag": f'"{git_sha1(path)}"', "Accept-Ranges": "bytes"}.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(size - first))
        self.end_headers()
        if body:
            self.hub.before_body()
            if name == self.hub.withheld:
                self.hub.over.wait()
            self._send(name, path, first)

    def _send(self, name: str, path: Path, first: int) -> None:
        limit = self.hub.cuts.get(name)
        with path.open("rb") as file:
            file.seek(first)
            while chunk := file.read(_CHUNK_BYTES if limit is None else min(_CHUNK_BYTES, limit)):
                self.wfile.write(chunk)
                self.hub.sent[name] = self.hub.sent.get(name, 0) + len(chunk)
                if limit is not None and self.hub.sent[name] >= limit:
                    self.hub.down = True
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
