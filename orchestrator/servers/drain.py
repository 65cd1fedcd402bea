"""The drain of a server before its stop: a time limit for its requests, and a count of ended and aborted ones."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from orchestrator.core.console import info, note
from orchestrator.core.errors import DeployError, UsageError
from orchestrator.core.signals import start_thread_without_signals
from orchestrator.engine.drain import RequestTally, ServerRequests, UnknownLoadError
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.replicas import replica_name
from orchestrator.servers.exit_record import stop_server
from orchestrator.servers.group import Server, api_key
from orchestrator.servers.rollout.join import leave
from orchestrator.servers.servers import Servers

_POLL: Final = 0.2  # seconds
_EXIT: Final = 10.0  # seconds for sglang to exit after its last request: it checks every 5 s
_FLUSH: Final = 2.0  # seconds for the last tokens of aborted requests to reach their clients


class Drain:
    """The requests of a running server, or of its replicas, while the `with` block stops the server.

    ::

        with Drain(server, seconds=30) as drain:  ──▶ counts the requests, in a thread
            …                                         aborts those left after 30 s
        ◀── prints `drained replica 1: 3 requests ended, 1 aborted after 30 s`
    """

    def __init__(self, server: Server | None, *, seconds: float) -> None:
        """Count the current requests of the running units."""
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self._tallies: dict[str, RequestTally] = {}
        self._ended, self._expired = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        for engine in server.engines if server is not None else ():
            with suppress(DeployError, OSError):  # dead or hung: none of its requests can end
                replica = replica_name(Path(engine.run_dir)).replace("-", " ")
                self._add(engine, replica or f"`{engine.name}`")

    def _add(self, engine: Server, label: str) -> None:
        address = urlsplit(engine.url)
        if not address.hostname or engine.current_state().status is not Status.RUNNING:
            return
        try:
            requests = ServerRequests(address.hostname, address.port or 80, key=_key_of(engine))
            self._tallies[label] = RequestTally(requests)
        except UnknownLoadError as error:
            reason = str(error)
            if (variable := _key_variable(engine)) and variable not in os.environ:
                reason = f"`{variable}` is not set; export it to count them"
            note(f"cannot count the requests of {label}: {reason}")

    @property
    def grace(self) -> float:
        """Time limit of the server's stop in seconds, for its remaining requests and then its exit."""
        if self._seconds <= 0:
            return 0.0
        return max(self._end - time.monotonic(), 0.0) + (_EXIT if self._tallies else 0.0)

    def wait(self) -> None:
        """Wait until all requests have ended; abort the rest at the time limit. The gateway must send no new ones."""
        if self._seconds <= 0:
            self.abort()
        idle = 0  # consecutive idle polls: a request may still be in transit
        while idle < 2 and not self._expired.wait(_POLL):
            idle = 0 if any(tally.is_busy for tally in self._tallies.values()) else idle + 1

    def __enter__(self) -> Self:
        if self._seconds > 0:
            start_thread_without_signals(self._thread)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._ended.set()
        if self._seconds > 0:
            self._thread.join()
        for label, tally in self._tallies.items() if error is None else ():
            if tally.ended or tally.aborted:
                info(f"drained {label}: {tally.summary(self._seconds)}")

    def _watch(self) -> None:
        while not self._ended.wait(_POLL) and self._tallies:
            if time.monotonic() >= self._end:
                self.abort()
                return
            self._update()
        self._expired.set()

    def _update(self) -> None:
        for tally in self._tallies.values():
            tally.update()

    def abort(self) -> None:
        """Abort the remaining requests, and wait until their clients have received the tokens generated so far."""
        for tally in self._tallies.values():
            tally.abort()
        end = time.monotonic() + _FLUSH
        while any(tally.is_busy for tally in self._tallies.values()) and time.monotonic() < end:
            time.sleep(_POLL)
            self._update()
        self._expired.set()


def drain_and_stop(servers: Servers, server: Server, *, seconds: float, reason: str) -> None:
    """Stop a server as soon as its requests have ended, or after `seconds`; see `stop_server`."""
    limit = server.max_drain
    if limit is not None and seconds > limit:
        note(f"`{server.name}` aborts its requests after {limit:g} s, `timeouts.termination_grace` of its plan")
        seconds = limit
    with Drain(server, seconds=seconds) as drain:
        leave(server, servers, seconds=seconds)
        if seconds <= 0:
            drain.abort()
        stop_server(server, home=servers.home, grace=drain.grace, reason=reason)


def _key_variable(engine: Server) -> str | None:
    return engine.plan.server.api_key_env if engine.plan else None


def _key_of(engine: Server) -> str:
    """Return the API key of a server; "" if the server has none, or if its variable is not set here."""
    with suppress(UsageError):
        key = api_key(_key_variable(engine))
        return key.reveal() if key else ""
    return ""
