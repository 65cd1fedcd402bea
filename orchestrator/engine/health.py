"""Whether each rank of a server lives: a token that it is asked for, and the work that it counts.

Over `http.client`, not httpx: what asks does so for as long as the server runs, and httpx alone takes 15 MB.
"""

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.secrets import Secret
from orchestrator.core.text import parse_json
from orchestrator.engine.endpoints import GENERATE, METRICS, MODELS, authorization
from orchestrator.engine.gateway import LIVENESS
from orchestrator.engine.liveness import MOST_METRICS_BYTES, RankProgress, question, read_work
from orchestrator.engine.responses import (
    Json,
    NoResponseError,
    UnexpectedResponseError,
    get_object,
    number,
    read_models,
)

_KNOCK_WITHIN: Final = 0.2  # seconds
_METRICS_WITHIN: Final = 10.0  # seconds
_ALIVE: Final = b"OK"  # the body of smg's `LIVENESS` (seen of 1.13.0)


@dataclass(frozen=True, kw_only=True)
class HealthClient:
    """One server, asked a little. Each question raises NoAnswerError."""

    url: str
    key: Secret | None
    model: str  # its served name: an answer for another model comes from another server

    def listens(self) -> bool:
        """Whether its port takes a connection, which is closed again; a host that says nothing may yet."""
        at = urlsplit(self.url)
        try:
            socket.create_connection((at.hostname or "", at.port or 80), timeout=_KNOCK_WITHIN).close()
        except TimeoutError:
            return True
        except OSError:
            return False
        return True

    def token_of(self, rank: int, *, within: float) -> int:
        """Ask a rank for one token, and the server for its model; return the status of the answer.

        An answer without a token, or of a server with another model, raises NoAnswerError: another program may listen
        on the port of a server that has ended. `within` is in seconds of silence.
        """
        status, content = self._ask("POST", GENERATE, json.dumps(question(rank)).encode(), within=within)
        if status == http.client.OK:
            self._require_token(content)
            self._require_model(within=within)
        return status

    def gateway(self, *, within: float) -> int:
        """Ask a gateway whether it runs; return the status of the answer.

        An answer that no gateway gives raises NoAnswerError.
        """
        status, content = self._ask("GET", LIVENESS, None, within=within)
        if status == http.client.OK and content != _ALIVE:
            raise NoResponseError("the answer is not that of a gateway")
        return status

    def _require_token(self, content: bytes) -> None:
        try:
            tokens = number(get_object(_object(content), "meta_info"), "completion_tokens")
        except UnexpectedResponseError as error:
            raise NoResponseError("the answer is not that of an sglang server") from error
        if not tokens:
            raise NoResponseError("the answer has no token")

    def _require_model(self, *, within: float) -> None:
        status, content = self._ask("GET", MODELS, None, within=within)
        try:
            served = read_models(_object(content))
        except UnexpectedResponseError as error:
            raise NoResponseError(f"`{MODELS}` answers {status} and names no model") from error
        if self.model not in served:
            raise NoResponseError(f"another server answers: it does not serve `{self.model}`")

    def work(self) -> RankProgress:
        """What each rank has done so far, see `read_work`."""
        status, content = self._ask("GET", METRICS, None, within=_METRICS_WITHIN)
        return read_work(content if status == http.client.OK else b"")

    def _ask(self, method: str, path: str, content: bytes | None, *, within: float) -> tuple[int, bytes]:
        at = urlsplit(self.url)
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        connection = kind(at.netloc, timeout=within)
        headers = {**authorization(self.key), "Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(method, at.path.rstrip("/") + path, body=content, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MOST_METRICS_BYTES)
        except TimeoutError as error:
            raise NoResponseError(f"no answer within {within:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise NoResponseError(getattr(error, "strerror", None) or "no whole HTTP/1.1 answer") from error
        finally:
            connection.close()


def _object(content: bytes) -> Json:
    """Parse a JSON object. Raises OddAnswerError."""
    try:
        data = parse_json(content)
    except ValueError as error:
        raise UnexpectedResponseError("it is no JSON") from error
    if not isinstance(data, dict):
        raise UnexpectedResponseError("it is no JSON object")
    return data
