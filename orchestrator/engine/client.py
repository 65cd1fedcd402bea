"""A synchronous client of a server: health, models, completions, streams, sglang's own API, metrics.

The client guards against a hostile or broken server: every request has a total time limit, every response a size limit;
it ignores redirects and proxies from the environment. Each connection serves one request: a new connection costs little
compared with a response that takes seconds, and the server might have closed an old one.
"""

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self

import httpx

from orchestrator.core.http import Deadline, iter_capped
from orchestrator.core.secrets import MAX_SPELLING, Secret, excerpt
from orchestrator.engine.endpoints import HEALTH, METRICS, MODELS, authorization
from orchestrator.engine.liveness import MAX_METRICS_BYTES
from orchestrator.engine.metrics import Metrics, read_metrics
from orchestrator.engine.requests import Body
from orchestrator.engine.responses import (
    MAX_RESPONSE_BYTES,
    Json,
    NoResponseError,
    UnauthorizedError,
    UnexpectedResponseError,
    read_list,
    read_models,
    read_object,
)
from orchestrator.engine.sse import DONE, SseParser, is_error

MAX_STREAM_BYTES: Final = 64 << 20
_ERRNO: Final = re.compile(r"^\[Errno -?\d+\] ")
_MAX_TEXT: Final = 200  # characters of an error response, or of a path, shown in a message


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts in seconds: for the connection, between two bytes, and for the whole request."""

    connect: float
    idle: float
    total: float

    def capped(self, seconds: float) -> "Timeouts":
        """Return these limits, each capped at `seconds`."""
        connect, idle, total = (min(item, seconds) for item in (self.connect, self.idle, self.total))
        return Timeouts(connect=connect, idle=idle, total=total)


DEFAULT_TIMEOUTS: Final = Timeouts(connect=5, idle=30, total=60)
# sglang waits 20 s for the token of a health request (SGLANG_HEALTH_CHECK_TIMEOUT), then answers 503.
HEALTH_LIMITS: Final = Timeouts(connect=2, idle=25, total=27)


class EngineClient:
    """A client of one server.

    Each request raises NoResponseError if no complete response arrives, UnexpectedResponseError if it is unusable.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Secret | None,
        limits: Timeouts = DEFAULT_TIMEOUTS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Create a client for the base URL `url`; `limits` apply to every request except health.

        Raises NoResponseError for an invalid URL.
        """
        self._limits = limits
        self._key = key
        try:
            self._client = httpx.Client(
                base_url=url,
                headers={"Accept-Encoding": "identity", "Connection": "close"},
                verify=_tls(url),
                limits=httpx.Limits(max_keepalive_connections=0),
                follow_redirects=False,
                trust_env=False,
                transport=transport,
            )
        except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: an invalid host name
            raise NoResponseError(f"{url!a} is not a valid URL") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client for good."""
        self._client.close()

    def health(self, *, tries: int = 1, timeout: float = inf) -> int:
        """Return the HTTP status of `/health`, for which the server generates a token.

        Each of the `tries` ends after `timeout` seconds, or after HEALTH_LIMITS if shorter.

        A busy server needs two tries: a health request that arrives while another ends waits for an output that never
        comes (sglang 0.5.14, managers/scheduler.py:1633), so a single 503 proves nothing.
        """
        status = 0
        for _ in range(tries):
            status = self._status("GET", HEALTH, limits=HEALTH_LIMITS.capped(timeout))
            if status == httpx.codes.OK:
                break
        return status

    def models(self, *, timeout: float = inf) -> dict[str, int | None]:
        """Return the served models with their context lengths in tokens, None if unreported.

        The request ends after `timeout` seconds, or after the client's own limits if shorter.
        """
        return read_models(self._object("GET", MODELS, limits=self._limits.capped(timeout)))

    def metrics(self) -> Metrics:
        """Return the server's metrics by name; empty if the server exports none."""
        return read_metrics(self.exported())

    def exported(self) -> bytearray:
        """Return the server's metrics as Prometheus text; empty if the server exports none."""
        with self._open("GET", METRICS) as response:
            exported = response.status_code == httpx.codes.OK
            return _read_capped(response, MAX_METRICS_BYTES) if exported else bytearray()

    def get(self, path: str) -> Json:
        """GET the JSON object at `path`."""
        return self._object("GET", path)

    def post(
        self, path: str, body: Body, headers: Mapping[str, str] | None = None, *, limits: Timeouts | None = None
    ) -> Json:
        """POST `body` as JSON; return the JSON object of the response. `limits` replace the client's limits."""
        return self._object("POST", path, content=json.dumps(body).encode(), headers=headers, limits=limits)

    def post_list(self, path: str, body: Body) -> list[Json]:
        """POST `body` as JSON; return the list of JSON objects of the response."""
        with self._open("POST", path, content=json.dumps(body).encode()) as response:
            _require_ok(response)
            content = _read_capped(response, MAX_RESPONSE_BYTES)
        return read_list(content, path=path)

    def post_status(self, path: str, content: bytes, *, with_key: bool = True) -> int:
        """POST raw bytes as JSON; return the HTTP status."""
        return self._status("POST", path, content=content, with_key=with_key)

    def status(self, method: str, path: str, body: Body | None = None, *, limits: Timeouts | None = None) -> int:
        """Send a request with any method; return the HTTP status. `limits` replace the client's limits."""
        return self._status(method, path, content=None if body is None else json.dumps(body).encode(), limits=limits)

    def events(self, path: str, body: Body, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """POST `body` and yield the events of the streamed response as they arrive, without the final `[DONE]`.

        Also raises UnexpectedResponseError for an error event, or a stream that ends without `[DONE]`.
        """
        reader = SseParser()
        content = json.dumps({**body, "stream": True}).encode()
        with self._open("POST", path, content=content, headers=headers) as response:
            _require_ok(response)
            for event in (event for data in _bounded(response, MAX_STREAM_BYTES) for event in reader.feed(data)):
                if event == DONE:
                    return
                if is_error(event):
                    raise UnexpectedResponseError(f"the stream contains an error: {excerpt(event, 300)}")
                yield event
        raise UnexpectedResponseError("the stream ended without `data: [DONE]`")

    def _object(self, method: str, path: str, **request: Any) -> Json:  # noqa: ANN401 - as `_open` takes it
        with self._open(method, path, **request) as response:
            _require_ok(response)
            content = _read_capped(response, MAX_RESPONSE_BYTES)
        return read_object(content, path=path)

    def _status(self, method: str, path: str, **request: Any) -> int:  # noqa: ANN401 - as `_open` takes it
        with self._open(method, path, **request) as response:
            return response.status_code

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        with_key: bool = True,
        headers: Mapping[str, str] | None = None,
        limits: Timeouts | None = None,
    ) -> Iterator[httpx.Response]:
        limits = limits or self._limits
        headers = {**(headers or {}), **(authorization(self._key) if with_key else {})}
        if content is not None:
            headers["Content-Type"] = "application/json"
        end = Deadline(limits.total)
        try:
            request = self._client.build_request(
                method,
                path,
                content=content,
                headers=headers,
                timeout=httpx.Timeout(limits.idle, connect=limits.connect),
                extensions={"trace": end.watch},
            )
        except (httpx.InvalidURL, UnicodeError) as error:  # the path may contain a name that a server sent
            raise UnexpectedResponseError(f"{path[:_MAX_TEXT]!a} is not a valid path") from error
        with end:
            try:
                response = self._client.send(request, stream=True)
                try:
                    yield response
                finally:
                    response.close()
            except (httpx.HTTPError, UnicodeError) as error:
                raise NoResponseError(f"{request.url}: {_words(error, end, limits)}") from error
            if end.reached:  # closing the connection looks like the end of a response without Content-Length
                raise NoResponseError(f"{request.url}: {_words(None, end, limits)}")


def _words(error: Exception | None, end: Deadline, limits: Timeouts) -> str:
    if end.reached:
        return f"no complete response within {round(limits.total, 1):g} s"
    if isinstance(error, httpx.ConnectTimeout):
        return f"no connection within {limits.connect:g} s"
    if isinstance(error, httpx.TimeoutException):
        return f"no response within {limits.idle:g} s"
    if isinstance(error, httpx.ConnectError):
        return f"no connection: {_ERRNO.sub('', str(error))}"
    if isinstance(error, httpx.UnsupportedProtocol | UnicodeError):
        return "invalid URL"
    return "no complete HTTP/1.1 response"


def _tls(url: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities and `SSL_CERT_FILE`.

    For plain HTTP the context is empty, since loading the authorities takes time.
    """
    return ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _bounded(response: httpx.Response, max_bytes: int) -> Iterator[bytes]:
    try:
        yield from iter_capped(response, max_bytes)
    except httpx.DecodingError as error:
        raise UnexpectedResponseError(f"`{response.request.url.path}`: {error}") from error


def _read_capped(response: httpx.Response, max_bytes: int) -> bytearray:
    content = bytearray()  # a list of chunks would take 28 times the memory if a server sends two bytes at a time
    for data in _bounded(response, max_bytes):
        content += data
    return content


def _require_ok(response: httpx.Response) -> None:
    """Raise UnexpectedResponseError, with the beginning of the response body, unless the status is 200.

    Raises UnauthorizedError for 401 and 403.
    """
    if response.status_code == httpx.codes.OK:
        return
    body = b""
    for data in _bounded(response, MAX_RESPONSE_BYTES):
        body += data
        if len(body) >= MAX_SPELLING:  # enough to redact a key at the end of the excerpt
            break
    text = excerpt(body, _MAX_TEXT)
    path, code = response.request.url.path, response.status_code
    if code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        reason = "rejected this API key" if "Authorization" in response.request.headers else "requires an API key"
        raise UnauthorizedError(f"`{path}` {reason} ({code}): {text}")
    raise UnexpectedResponseError(f"`{path}` returned HTTP {code}: {text}")
