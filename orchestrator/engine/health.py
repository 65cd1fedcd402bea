"""Health requests to one server: a token from each rank, a gateway's liveness, and progress counters.

Uses `http.client`: the watcher runs as long as its server, and httpx alone takes 15 MB.
"""

import http.client
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.secrets import Secret
from orchestrator.engine.endpoints import GENERATE, METRICS, MODELS, authorization
from orchestrator.engine.gateway import LIVENESS
from orchestrator.engine.liveness import MAX_METRICS_BYTES, RankProgress, question, read_work
from orchestrator.engine.responses import (
    NoResponseError,
    UnexpectedResponseError,
    get_object,
    number,
    read_models,
    read_object,
)

_CONNECT_TIMEOUT: Final = 0.2  # seconds
_METRICS_TIMEOUT: Final = 10.0  # seconds
_ALIVE: Final = b"OK"  # body of smg's `LIVENESS` (seen with 1.13.0)


@dataclass(frozen=True, kw_only=True)
class HealthClient:
    """A client of one server. Each request raises NoResponseError without a valid answer."""

    url: str
    key: Secret | None
    model: str  # served name: an answer for another model comes from another server
    alone: bool = False  # a prefill or decode server, which needs a bootstrap address
    connect: Callable[[float], socket.socket] | None = None  # connects to a server of a remote host; takes a timeout

    def accepts_connections(self) -> bool:
        """Return whether the port accepts a connection. A host that does not answer in time counts as accepting."""
        parts = urlsplit(self.url)
        connect = self.connect or partial(socket.create_connection, (parts.hostname or "", parts.port or 80))
        try:
            connect(_CONNECT_TIMEOUT).close()
        except TimeoutError:
            return True
        except OSError:
            return False
        return True

    def probe_rank(self, rank: int, *, timeout: float) -> int:
        """Request one token from a rank, and the list of models; return the HTTP status of the first request.

        Also raises NoResponseError for an answer without a token or for another model: another program may listen on
        the port of an exited server. `timeout` is the limit in seconds between two bytes.
        """
        status, content = self._request(
            "POST", GENERATE, json.dumps(question(rank, alone=self.alone)).encode(), timeout=timeout
        )
        if status == http.client.OK:
            self._require_token(content)
            self._require_model(timeout=timeout)
        return status

    def probe_gateway(self, *, timeout: float) -> int:
        """Request the liveness of a gateway; return the HTTP status.

        Also raises NoResponseError for an answer that is not a gateway's.
        """
        status, content = self._request("GET", LIVENESS, None, timeout=timeout)
        if status == http.client.OK and content != _ALIVE:
            raise NoResponseError("the response is not that of a gateway")
        return status

    def _require_token(self, content: bytes) -> None:
        try:
            tokens = number(get_object(read_object(content, path=GENERATE), "meta_info"), "completion_tokens")
        except UnexpectedResponseError as error:
            raise NoResponseError("the response is not that of an sglang server") from error
        if not tokens:
            raise NoResponseError("the response has no token")

    def _require_model(self, *, timeout: float) -> None:
        status, content = self._request("GET", MODELS, None, timeout=timeout)
        try:
            served = read_models(read_object(content, path=MODELS))
        except UnexpectedResponseError as error:
            raise NoResponseError(f"`{MODELS}` returned HTTP {status} and names no model") from error
        if self.model not in served:
            raise NoResponseError(f"another server responds; it does not serve `{self.model}`")

    def work(self) -> RankProgress:
        """Return the progress of each rank, from the server's metrics; see `read_work`."""
        status, content = self._request("GET", METRICS, None, timeout=_METRICS_TIMEOUT)
        return read_work(content if status == http.client.OK else b"")

    def _request(self, method: str, path: str, content: bytes | None, *, timeout: float) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=timeout)
        headers = {**authorization(self.key), "Content-Type": "application/json", "Connection": "close"}
        try:
            if self.connect is not None:
                connection.sock = self.connect(timeout)
            connection.request(method, parts.path.rstrip("/") + path, body=content, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_METRICS_BYTES)
        except TimeoutError as error:
            raise NoResponseError(f"no response within {timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise NoResponseError(getattr(error, "strerror", None) or "no complete HTTP/1.1 response") from error
        finally:
            connection.close()
