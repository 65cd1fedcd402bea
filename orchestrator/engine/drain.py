"""The requests of a server that is about to stop: count them, and abort the remaining ones after a time limit.

On SIGTERM sglang immediately answers `/health` with 503, still accepts requests, and waits for running requests without
a limit (0.5.14, managers/tokenizer_manager.py, `sigterm_watchdog`): this module sets the limit.

This file is also a program, the preStop hook of a server's container in a cluster, next to `liveness.py`. It runs with
the engine's own Python (3.10 in AMD's images) and only the standard library.

    python3 -I -S drain.py PORT SECONDS [CONFIG]
"""

import http.client
import json
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

if __package__:
    from orchestrator.engine.liveness import key_in, send_request
else:
    sys.path.append(str(Path(__file__).parent))
    from liveness import key_in, send_request  # type: ignore[import-not-found, no-redef]  # the same file

ABORT: Final = "/abort_request"
# The first exists until 0.5.20; the second answers 500 with fastapi 0.165 and --enable-metrics (0.5.14,
# srt/utils/common.py).
LOADS: Final = ("/get_load", "/v1/loads")
_MAX_BYTES: Final = 1 << 20
_TIMEOUT: Final = 2.0  # seconds for an answer; neither path waits for the scheduler
_POLL: Final = 0.5
_IDLE_POLLS: Final = 2  # consecutive polls without requests, as a request may be on its way
_LAUNCH: Final = b"sglang.launch_server"


class UnknownLoadError(Exception):
    """The server answers, but does not report its number of requests."""


class ServerRequests:
    """The requests of one server, at most 15 of its decode steps old (`load_snapshot_publish_interval`)."""

    def __init__(self, host: str, port: int, *, key: str) -> None:
        """Count requests at an address. `key` is "" if the server has no API key."""
        self._host, self._port, self._key = host, port, key

    def count(self) -> int:
        """Return the number of running and queued requests. Raises OSError without an answer, UnknownLoadError."""
        status = 0
        for path in LOADS:
            status, content = self._ask("GET", path)
            if status == http.client.OK:
                return _requests_in(content)
            if status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
                raise UnknownLoadError("the server rejects the API key")
        raise UnknownLoadError(f"the load request returned HTTP {status}")

    def abort(self) -> None:
        """Abort every request; each client gets the tokens so far. Raises OSError."""
        self._ask("POST", ABORT, json.dumps({"abort_all": True}).encode())

    def _ask(self, method: str, path: str, body: "bytes | None" = None) -> "tuple[int, bytes]":
        with closing(
            send_request((self._host, self._port), method, path, body, key=self._key, seconds=_TIMEOUT)
        ) as connection:
            try:
                answer = connection.getresponse()
                return answer.status, answer.read(_MAX_BYTES)
            except http.client.HTTPException as error:
                raise OSError(f"no complete response: {type(error).__name__}") from error


def _requests_in(content: bytes) -> int:
    """Return the running and queued requests of all ranks from a response to `LOADS`. Raises UnknownLoadError."""
    try:
        data: Any = json.loads(content)
        ranks = data["loads"] if isinstance(data, dict) else data
        names = ("num_reqs",) if isinstance(data, list) else ("num_running_reqs", "num_waiting_reqs")
        return sum(int(rank[name]) for rank in ranks for name in names)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnknownLoadError("the response to the load request has an unknown format") from error


class RequestTally:
    """Counts of ended and of aborted requests of one draining server."""

    def __init__(self, requests: ServerRequests) -> None:
        """Begin with the server's current requests. Raises OSError, UnknownLoadError."""
        self._requests = requests
        self.left = self._seen = requests.count()
        self.aborted = 0
        self.is_busy = self.left > 0  # and responds

    @property
    def ended(self) -> int:
        """The requests that ended by themselves, counting the remaining ones as ended."""
        return self._seen - self.aborted

    def update(self) -> None:
        """Count again; without an answer, keep the last count."""
        try:
            now = self._requests.count()
        except (OSError, UnknownLoadError):
            self.is_busy = False
            return
        self._seen += max(now - self.left, 0)
        self.left, self.is_busy = now, now > 0

    def abort(self) -> None:
        """Abort the remaining requests."""
        self.update()
        self.aborted = self.left
        with suppress(OSError):  # then the stop ends them
            self._requests.abort() if self.left else None

    def summary(self, seconds: float) -> str:
        """Return a summary such as `3 requests ended, 1 aborted after 30 s`."""
        cut = f", {self.aborted} aborted after {seconds:g} s" if self.aborted else ""
        return f"{self.ended} request{'' if self.ended == 1 else 's'} ended{cut}"


def main(port: str, seconds: str, *config: str) -> None:
    """Wait for the requests of the server on a port of this host, abort the remaining ones, and log a summary."""
    key = key_in(Path(config[0]).read_text(encoding="utf-8")) if config else ""
    try:
        tally = RequestTally(ServerRequests("127.0.0.1", int(port), key=key))
    except (OSError, UnknownLoadError):  # the server is dead, hangs or is still loading
        return
    end, idle = time.monotonic() + float(seconds), 0
    while idle < _IDLE_POLLS and time.monotonic() < end:
        time.sleep(_POLL)
        tally.update()
        idle = 0 if tally.left else idle + 1
    tally.abort()
    if tally.ended or tally.aborted:
        _log(f"drained: {tally.summary(float(seconds))}")


def _log(line: str) -> None:
    """Write a line into the server's log; Kubernetes discards the output of a hook."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _LAUNCH in (process / "cmdline").read_bytes():
                with (process / "fd/1").open("w", encoding="utf-8") as log:
                    log.write(f"{line}\n")
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
