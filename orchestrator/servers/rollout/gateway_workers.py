"""What changes the servers behind a gateway that runs: one is taken away, or put back.

A gateway takes such a change from whoever has its control key, which is made at its start and kept beside its record,
readable by its user alone: a later command has to know it. One that finds its servers by itself is shown them, or not.
"""

import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError, NotReadyError, StartError
from orchestrator.core.files import atomic_write, read_private
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.core.secrets import Secret
from orchestrator.engine.client import EngineClient
from orchestrator.engine.gateway import WORKERS, GatewayWorker, parse_workers
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.runs.run_dir import write_error
from orchestrator.servers.group import RunningServer, ServerGroup
from orchestrator.verify.gateway import count_servers

_FILE: Final = "gateway.key"
_ACCEPTED: Final = 202
_SETTLE: Final = 30  # seconds: what has not been answered by then, the server itself finishes while it is stopped
_MORE: Final = 10.0  # seconds for the gateway to carry a change out, on a busy machine
_WITHIN: Final = 60.0  # seconds; smg 1.13.0 asks a server that serves for its model and takes it within 0.2 s
_PAUSE: Final = 0.1


def make_control_key(run_dir: Path, home: Home) -> Secret:
    """Make the control key of a gateway that is about to be started there. Raises HostError."""
    key = secrets.token_hex(32)
    try:
        atomic_write(run_dir / _FILE, key, mode=0o600)
    except OSError as error:
        raise write_error(home, error) from error
    return Secret(key)


def require_own(url: str, control: Secret) -> None:
    """Raise NotReadyError where another gateway answers at that URL: it takes another control key.

    It may have been there before, as on a node of a cluster, where nobody asks for free ports.
    """
    try:
        GatewayWorkers(url=url, control=control, key=None, settle=0).behind()
    except HostError as error:
        where = f"another gateway than the one that was started answers at {url}"
        raise NotReadyError(where, hint="`--set server.port=…` takes another port", details=error.message) from error


def control_of(
    gateway: RunningServer, runtime: ServerGroup, *, servers: int, key: Secret | None, grace: float
) -> "GatewayWorkers | DiscoveredWorkers":
    """The control of a gateway that runs, of so many servers, some of which may be down.

    `key` is the servers', `grace` the seconds that their requests may take.

    Raises StartError where that is not to be had.
    """
    if runtime.discovers:
        return DiscoveredWorkers(url=gateway.url, runtime=runtime, servers=servers)
    file = Path(gateway.own_dir) / _FILE
    try:
        control = GatewayWorkers(
            url=gateway.url, control=Secret(read_private(file).decode()), key=key, settle=min(int(grace), _SETTLE)
        )
        control.behind()
    except (OSError, UnicodeDecodeError, HostError) as error:
        why = error.message if isinstance(error, HostError) else f"`{file}` cannot be read"
        raise StartError(
            f"the servers behind the gateway of `{gateway.name}` cannot be changed: {why}",
            hint=f"`deploy down {gateway.name}` ends all of them; then the same command starts all of them",
        ) from error
    return control


@dataclass(frozen=True, kw_only=True)
class GatewayWorkers:
    """A gateway whose servers are changed. Each call raises HostError where it does not answer as expected.

    Each server has a port that no other of them has, and is known by it: one that a cluster has moved, or that is
    gone, is listed where it was.
    """

    url: str
    control: Secret
    key: Secret | None  # of the servers
    settle: int  # seconds that a server stays listed, and is sent nothing new

    def behind(self) -> tuple[GatewayWorker, ...]:
        """The servers behind it."""
        try:
            with EngineClient(self.url, key=self.control) as gateway:
                return parse_workers(gateway.get(WORKERS))
        except (NoResponseError, UnexpectedResponseError) as error:
            raise HostError(f"the gateway does not list its servers: {error}") from error

    def hold_back(self, new: RunningServer) -> None:
        """Have a server that was started sent nothing yet: it is as long as nobody puts it back."""

    def take_away(self, url: str, _: RunningServer | None) -> None:
        """Have a server sent nothing new, and wait for its requests; one that is not there has been taken away."""
        for server in self._of(url):
            path = f"{WORKERS}/{server.identity}"
            self._change("PATCH", path, {"health": {"drain_settle_secs": self.settle}})
            self._change("DELETE", path)
        idle = 0  # looks in a row: a request may just be on its way from the gateway to the server

        def look() -> bool:
            nonlocal idle
            left = self._of(url)
            idle = 0 if any(each.ready or each.requests for each in left) else idle + 1
            return not left or idle > 1

        poll_until(bool, look, within=self.settle + _MORE, pause=_PAUSE)

    def put_back(self, url: str, new: RunningServer) -> None:
        """Have it send requests to a server that serves, and wait until it does. Raises NotReadyError."""
        poll_until(lambda left: not left, lambda: self._gone(url), within=self.settle + _MORE, pause=_PAUSE)
        if not self._of(url):
            key = {"api_key": self.key.reveal()} if self.key else {}
            self._change("POST", WORKERS, {"url": url, **key})
        if not poll_until(bool, lambda: self.serves(url, new), within=_WITHIN, pause=_PAUSE):
            raise NotReadyError(f"the gateway does not count `{url}` after {_WITHIN:.0f} s", hint="its log says why")

    def serves(self, url: str, _: RunningServer) -> bool:
        """Whether it sends requests there."""
        return any(server.ready for server in self._of(url))

    def _gone(self, url: str) -> tuple[GatewayWorker, ...]:
        """What is left of a server that was taken away."""
        return tuple(server for server in self._of(url) if not server.ready)

    def _of(self, url: str) -> tuple[GatewayWorker, ...]:
        port = urlsplit(url).port
        return tuple(server for server in self.behind() if urlsplit(server.url).port == port)

    def _change(self, method: str, path: str, body: dict[str, object] | None = None) -> None:
        try:
            with EngineClient(self.url, key=self.control) as gateway:
                status = gateway.status(method, path, body)
        except NoResponseError as error:
            raise HostError(f"the gateway does not answer: {error}") from error
        if status != _ACCEPTED:
            raise HostError(f"the gateway answers `{method} {path}` with {status}", where=self.url)


@dataclass(frozen=True, kw_only=True)
class DiscoveredWorkers:
    """A gateway that finds its `servers` by itself. Each call raises HostError where its cluster does not answer."""

    url: str
    runtime: ServerGroup
    servers: int

    def hold_back(self, new: RunningServer) -> None:
        """Have a server that was started not be found before it is proved."""
        self.runtime.show(new, shown=False)

    def take_away(self, _: str, old: RunningServer | None) -> None:
        """Have a server found no more, and wait until it is sent nothing new: its own stop lets requests finish."""
        if old is None or not self.runtime.is_shown(old):
            return
        before, ready = count_servers(self.url), self.runtime.is_ready(old)
        self.runtime.show(old, shown=False)
        if before < self.servers and not ready:  # it is one of those that are not counted
            return
        look = partial(count_servers, self.url)
        if poll_until(lambda count: count < before, look, within=_MORE, pause=_PAUSE) >= self.servers:
            which = f"`{Path(old.run_dir).name}` after {_MORE:.0f} s"
            warn(f"the gateway still counts {which}: what it sends there may fail")

    def put_back(self, _: str, new: RunningServer) -> None:
        """Have a server that serves found, and wait until it is. Raises NotReadyError."""
        look = partial(count_servers, self.url)
        before = poll_until(bool, look, within=_MORE, pause=_PAUSE)  # one that does not answer in time counts none
        self.runtime.show(new, shown=True)
        more = min(before + 1, self.servers)
        if poll_until(lambda count: count >= more, look, within=_WITHIN, pause=_PAUSE) < more:
            what = f"the gateway does not count `{Path(new.run_dir).name}` after {_WITHIN:.0f} s"
            raise NotReadyError(what, hint="its log says why")

    def serves(self, _: str, server: RunningServer) -> bool:
        """Whether it may be sent requests."""
        return self.runtime.is_shown(server)
