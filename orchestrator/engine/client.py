"""One synchronous client of a server: health, models, completions and their stream, sglang's own API, metrics.

It limits what a server can do to it: every request has an end, however slowly its answer drips; an answer has a size;
a redirect is an answer like any other; no proxy is taken from the environment. A connection serves one request: with
the seconds that a server takes for an answer, opening one costs nothing, and none is found closed by the other side.
"""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self

import httpx

from orchestrator.core.http import Deadline
from orchestrator.core.secrets import MAX_SPELLING, Secret, excerpt
from orchestrator.core.signals import defer_signals
from orchestrator.engine.endpoints import HEALTH, METRICS, MODELS, authorization
from orchestrator.engine.liveness import MOST_METRICS_BYTES
from orchestrator.engine.metrics import Metrics, read_metrics
from orchestrator.engine.requests import Body
from orchestrator.engine.responses import (
    MOST_BYTES,
    Json,
    NoResponseError,
    UnauthorizedError,
    UnexpectedResponseError,
    read_list,
    read_models,
    read_object,
)
from orchestrator.engine.sse import DONE, SseParser, is_error

MOST_STREAM_BYTES: Final = 64 << 20
_ERRNO: Final = re.compile(r"^\[Errno -?\d+\] ")
_MOST_SAID: Final = 200  # characters that are shown of what a server says to a request that it refuses


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Seconds: until there is a connection, until the next byte, and for the whole request."""

    connect: float
    silence: float
    whole: float

    def within(self, seconds: float) -> "TimeLimits":
        """The same limits, none longer than so many seconds."""
        connect, silence, whole = (min(each, seconds) for each in (self.connect, self.silence, self.whole))
        return TimeLimits(connect=connect, silence=silence, whole=whole)


ORDINARY: Final = TimeLimits(connect=5, silence=30, whole=60)
# sglang gives its own health request 20 s (SGLANG_HEALTH_CHECK_TIMEOUT) before it answers 503.
HEALTH_LIMITS: Final = TimeLimits(connect=2, silence=25, whole=27)


class EngineClient:
    """Requests to one server. Each raises NoAnswerError, and OddAnswerError for an answer that cannot be used."""

    def __init__(
        self,
        url: str,
        *,
        key: Secret | None,
        limits: TimeLimits = ORDINARY,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Ask the server at `url`, its base URL; `limits` hold for every request but health."""
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
        except (httpx.InvalidURL, UnicodeError) as error:  # the second for a host that no name can be
            raise NoResponseError(f"{url!a} is not the URL of a server") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask nothing more."""
        self._client.close()

    def health(self, *, tries: int = 1, within: float = inf) -> int:
        """The status with which the server answers for its health, for which it generates a token.

        Each try ends after `within` seconds, where that is sooner than its own limits.

        A health request that meets the end of another one waits for an output that never comes (sglang 0.5.14,
        managers/scheduler.py:1633): a single 503 says nothing of a server that serves, so give it two `tries`.
        """
        with defer_signals():
            from tenacity import Retrying, retry_if_not_result, stop_after_attempt  # noqa: PLC0415 - see `look_until`

        asked = Retrying(
            stop=stop_after_attempt(tries),
            retry=retry_if_not_result(lambda status: status == httpx.codes.OK),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        status: int = asked(self._status, "GET", HEALTH, limits=HEALTH_LIMITS.within(within))
        return status

    def models(self, *, within: float = inf) -> dict[str, int | None]:
        """The models that are served, each with its context length in tokens where the server says so.

        The request ends after `within` seconds, where that is sooner than its own limits.
        """
        return read_models(self._object("GET", MODELS, limits=self._limits.within(within)))

    def metrics(self) -> Metrics:
        """The server's counters by name; none where it does not export them."""
        return read_metrics(self.exported())

    def exported(self) -> bytearray:
        """Its counters as Prometheus reads them; nothing where it does not export them."""
        with self._open("GET", METRICS) as response:
            exported = response.status_code == httpx.codes.OK
            return _whole(response, MOST_METRICS_BYTES) if exported else bytearray()

    def get(self, path: str) -> Json:
        """The JSON object at `path`."""
        return self._object("GET", path)

    def post(self, path: str, body: Body) -> Json:
        """The JSON object that answers `body`."""
        return self._object("POST", path, content=json.dumps(body).encode())

    def post_list(self, path: str, body: Body) -> list[Json]:
        """The list of JSON objects that answers `body`."""
        with self._open("POST", path, content=json.dumps(body).encode()) as response:
            _require_ok(response)
            content = _whole(response, MOST_BYTES)
        return read_list(content, path=path)

    def post_status(self, path: str, content: bytes, *, with_key: bool = True) -> int:
        """The status that answers raw bytes sent as JSON."""
        return self._status("POST", path, content=content, with_key=with_key)

    def status(self, method: str, path: str, body: Body | None = None) -> int:
        """The status that answers any other request."""
        return self._status(method, path, content=None if body is None else json.dumps(body).encode())

    def events(self, path: str, body: Body) -> Iterator[bytes]:
        """The events of the streamed answer to `body`, without the one that ends it, as they arrive."""
        reader = SseParser()
        with self._open("POST", path, content=json.dumps({**body, "stream": True}).encode()) as response:
            _require_ok(response)
            for event in (event for data in _bounded(response, MOST_STREAM_BYTES) for event in reader.feed(data)):
                if event == DONE:
                    return
                if is_error(event):
                    raise UnexpectedResponseError(f"the stream holds an error: {excerpt(event, 300)}")
                yield event
        raise UnexpectedResponseError("the stream ended without `data: [DONE]`")

    def _object(self, method: str, path: str, **request: Any) -> Json:  # noqa: ANN401 - as `_open` takes it
        with self._open(method, path, **request) as response:
            _require_ok(response)
            content = _whole(response, MOST_BYTES)
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
        limits: TimeLimits | None = None,
    ) -> Iterator[httpx.Response]:
        limits = limits or self._limits
        headers = authorization(self._key) if with_key else {}
        if content is not None:
            headers["Content-Type"] = "application/json"
        end = Deadline(limits.whole)
        try:
            request = self._client.build_request(
                method,
                path,
                content=content,
                headers=headers,
                timeout=httpx.Timeout(limits.silence, connect=limits.connect),
                extensions={"trace": end.watch},
            )
        except (httpx.InvalidURL, UnicodeError) as error:  # a path with a name in it that a server gave
            raise UnexpectedResponseError(f"{path[:_MOST_SAID]!a} is no path of a server") from error
        with end:
            try:
                response = self._client.send(request, stream=True)
                try:
                    yield response
                finally:
                    response.close()
            except (httpx.HTTPError, UnicodeError) as error:
                raise NoResponseError(f"{request.url}: {_words(error, end, limits)}") from error
            if end.reached:  # the connection was shut, which also looks like the end of an answer without a length
                raise NoResponseError(f"{request.url}: {_words(None, end, limits)}")


def _words(error: Exception | None, end: Deadline, limits: TimeLimits) -> str:
    if end.reached:
        return f"no whole answer within {round(limits.whole, 1):g} s"
    if isinstance(error, httpx.ConnectTimeout):
        return f"no connection within {limits.connect:g} s"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {limits.silence:g} s"
    if isinstance(error, httpx.ConnectError):
        return f"no connection: {_ERRNO.sub('', str(error))}"
    if isinstance(error, httpx.UnsupportedProtocol | UnicodeError):
        return "this is not the URL of a server"
    return "no whole HTTP/1.1 answer"


def _tls(url: str) -> ssl.SSLContext:
    """The system's authorities (and `SSL_CERT_FILE`); without TLS a context that trusts nobody, as it costs nothing."""
    return ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _bounded(response: httpx.Response, most: int) -> Iterator[bytes]:
    if response.headers.get("Content-Encoding", "identity") != "identity":  # what a few bytes unpack to has no bound
        raise UnexpectedResponseError(f"`{response.request.url.path}` answers in an encoding that was not asked for")
    read = 0
    for data in response.iter_bytes():
        read += len(data)
        if read > most:
            raise UnexpectedResponseError(f"`{response.request.url.path}` answers with more than {most >> 20} MiB")
        yield data


def _whole(response: httpx.Response, most: int) -> bytearray:
    whole = bytearray()  # and no list of pieces: of a body in pieces of two bytes it takes 28 times as much
    for data in _bounded(response, most):
        whole += data
    return whole


def _require_ok(response: httpx.Response) -> None:
    """Raise OddAnswerError with the beginning of what a server says that does not answer 200."""
    if response.status_code == httpx.codes.OK:
        return
    said = b""
    for data in _bounded(response, MOST_BYTES):
        said += data
        if len(said) >= MAX_SPELLING:  # what is shown of it holds no half of a key
            break
    shown = excerpt(said, _MOST_SAID)
    path, code = response.request.url.path, response.status_code
    if code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        why = "refused this API key" if "Authorization" in response.request.headers else "wants an API key"
        raise UnauthorizedError(f"`{path}` {why} ({code}): {shown}")
    raise UnexpectedResponseError(f"`{path}` answers {code}: {shown}")
