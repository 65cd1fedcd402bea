"""Whether each rank of a server lives: a token that it is asked for, and the work that it counts.

Over `http.client`, not httpx: what asks does so for as long as the server runs, and httpx alone takes 15 MB.
"""

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.secret import Secret
from orchestrator.engine.answers import NoAnswerError
from orchestrator.engine.endpoints import GENERATE, METRICS, authorization
from orchestrator.engine.gateway import LIVENESS
from orchestrator.engine.life import MOST_METRICS_BYTES, Work, question, read_work

_KNOCK_WITHIN: Final = 0.2  # seconds
_METRICS_WITHIN: Final = 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """One server, asked a little. Each question raises NoAnswerError."""

    url: str
    key: Secret | None

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
        """The status with which a rank answers that is to generate one token; `within` seconds of silence.

        Only a whole answer counts.
        """
        return self._ask("POST", GENERATE, json.dumps(question(rank)).encode(), within=within)[0]

    def gateway(self, *, within: float) -> int:
        """The status with which a gateway answers that it runs."""
        return self._ask("GET", LIVENESS, None, within=within)[0]

    def work(self) -> Work:
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
            raise NoAnswerError(f"no answer within {within:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(getattr(error, "strerror", None) or "no whole HTTP/1.1 answer") from error
        finally:
            connection.close()
