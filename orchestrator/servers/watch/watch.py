"""`deploy watch`: restart servers that die or hang, until Ctrl-C.

This process imports no runtime: separate programs (`worker.py`) take snapshots and restart servers. The watcher
therefore needs less than 30 MB, and its death neither changes a server nor interrupts a restart.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from orchestrator.core.errors import (
    DeployError,
    HostError,
    NameTakenError,
    Problem,
    RestartLimitError,
    StartError,
    UsageError,
)
from orchestrator.core.locks import LockHeldError, hold
from orchestrator.core.paths import Home
from orchestrator.core.procfs import find_process
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret
from orchestrator.core.signals import start_thread_without_signals
from orchestrator.core.subprocesses import DEVNULL, PIPE, Program, python_module_argv, start
from orchestrator.engine.endpoints import read_key
from orchestrator.engine.health import HealthClient
from orchestrator.engine.liveness import RankProgress, read_work
from orchestrator.engine.responses import NoResponseError
from orchestrator.hosts.ssh import SshForward
from orchestrator.servers.watch.alerts import Alerts
from orchestrator.servers.watch.events import EventKind, PendingEvent, WatchEvent
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult, ServerSnapshot, SnapshotFailure
from orchestrator.servers.watch.watcher import GATEWAY, Watcher

_TICK: Final = 0.25  # seconds
_SNAPSHOT_TIMEOUT: Final = 120.0  # seconds; a Docker daemon may be slow
T = TypeVar("T")


class _Request(Generic[T]):
    """A request, with a thread that awaits the answer. See `Pending`."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._outcome: T | None = None

        def wait() -> None:
            self._outcome = ask()

        start_thread_without_signals(threading.Thread(target=wait, daemon=True))

    def outcome(self) -> T | None:
        return self._outcome


class _Worker(Generic[T]):
    """A program of `worker.py`, which prints its result as JSON. See `Pending`."""

    def __init__(
        self,
        words: Sequence[str],
        read: Callable[[dict[str, Any]], T],
        broken: Callable[[str], T],
        timeout: float | None,
    ) -> None:
        self._parse, self._broken = read, broken
        self._end = None if timeout is None else time.monotonic() + timeout
        argv = python_module_argv("orchestrator.servers.watch.worker", *words)
        self.program: Program = start(argv, env=os.environ, output=PIPE, errors=2 if words[0] == "restart" else DEVNULL)

    def outcome(self) -> T | None:
        if self.program.code is None:
            if self._end is None or time.monotonic() < self._end:
                return None
            self.program.end(signal.SIGKILL)
            return self._broken(f"no response within {_SNAPSHOT_TIMEOUT:g} s")
        output = self.program.output.read().decode(errors="replace")
        self.program.output.close()
        try:
            return self._parse(json.loads(output))
        except (ValueError, TypeError, KeyError):
            return self._broken(f"the worker exited with {self.program.code}")


@dataclass(frozen=True)
class _Forwards:
    """The forwards to a server of a remote host, by host and URL."""

    snapshot: ServerSnapshot | None = None
    of: dict[tuple[str, str], SshForward] = field(default_factory=dict)


@dataclass
class LiveBackend:
    """The backend of a real watcher, see `WatchBackend`."""

    restarts: list[Program] = field(default_factory=list)
    keys: dict[str, Secret] = field(default_factory=dict)
    _forwards: dict[str, _Forwards] = field(default_factory=dict)  # by name

    def listens(self, snapshot: ServerSnapshot) -> bool:
        """See `WatchBackend.listens`."""
        return all(map(find_process, snapshot.processes)) and self._client(snapshot).accepts_connections()

    def probe_rank(self, snapshot: ServerSnapshot, rank: int) -> _Request[int | str]:
        """See `WatchBackend.probe_rank`."""
        if rank == GATEWAY:
            ask = partial(self._client(snapshot).probe_gateway, timeout=_SNAPSHOT_TIMEOUT)
        else:
            server, local_rank = divmod(rank, snapshot.ranks // max(len(snapshot.replica_urls), 1))
            timeout = max(snapshot.unhealthy_after, _SNAPSHOT_TIMEOUT)
            ask = partial(self._client(snapshot, server).probe_rank, local_rank, timeout=timeout)

        def status() -> int | str:
            try:
                return ask()
            except NoResponseError as error:
                return str(error)

        return _Request(status)

    def work(self, snapshot: ServerSnapshot) -> _Request[RankProgress]:
        """See `WatchBackend.work`."""
        clients = [self._client(snapshot, server) for server in range(max(len(snapshot.replica_urls), 1))]
        return _Request(lambda: _combine([_work_of(client) for client in clients], snapshot.ranks))

    def take_snapshot(self, name: str) -> _Worker[ServerSnapshot | SnapshotFailure]:
        """See `WatchBackend.take_snapshot`."""
        return _Worker(
            ("snapshot", name),
            _parse_snapshot,
            lambda reason: SnapshotFailure(message=reason, hint="", code=1),
            _SNAPSHOT_TIMEOUT,
        )

    def restart(self, snapshot: ServerSnapshot, reason: str) -> _Worker[RestartResult]:
        """See `WatchBackend.restart`."""

        def broken(cause: str) -> RestartResult:  # the next snapshot shows the actual state
            return RestartResult(outcome=RestartOutcome.FAILED, message=cause)

        run = _Worker(("restart", snapshot.name, snapshot.run, reason), _parse_restart, broken, None)
        self.restarts.append(run.program)
        return run

    def api_key_for(self, variable: str | None) -> Secret | None:
        """Return the API key in a variable. Raises UsageError if the variable is not set."""
        if variable is None:
            return None
        if not (value := os.environ.get(variable)):
            message = f"`{variable}` is not set; the watcher needs the API key of the server"
            raise UsageError(message, hint=f"export {variable}=…")
        return self.keys.setdefault(variable, read_key(value, location=variable))

    def _client(self, snapshot: ServerSnapshot, server: int | None = None) -> HealthClient:
        """Return a client of the server, or of one replica behind its gateway."""
        key = None
        # A later start may use another key. Its server then rejects requests, but the other servers stay watched.
        with suppress(UsageError):
            key = self.api_key_for(snapshot.api_key_env)
        url = snapshot.url if server is None or not snapshot.replica_urls else snapshot.replica_urls[server]
        forward = self._forward(url, snapshot)
        connect = None if forward is None else forward.connect
        return HealthClient(url=url, key=key, model=snapshot.model, alone=snapshot.has_roles, connect=connect)

    def _forward(self, url: str, snapshot: ServerSnapshot) -> SshForward | None:
        """Return the forward to a URL of a remote host; None on this host.

        After a new snapshot, end the forwards that are no longer needed and replace each whose ssh has ended: the
        snapshot shows that the host is reachable.
        """
        forwards = self._forwards.get(snapshot.name, _Forwards())
        if forwards.snapshot is not snapshot:
            needed = {(snapshot.host, server_url) for server_url in (snapshot.url, *snapshot.replica_urls)}
            running = {key: forward for key, forward in forwards.of.items() if key in needed and forward.runs}
            for key in forwards.of.keys() - running:
                forwards.of[key].close()
            forwards = self._forwards[snapshot.name] = _Forwards(snapshot, running)
        if snapshot.host and (snapshot.host, url) not in forwards.of:
            forwards.of[snapshot.host, url] = SshForward(snapshot.host, int(url.rpartition(":")[2]))
        return forwards.of.get((snapshot.host, url))

    def close(self) -> None:
        """End all forwards."""
        for forwards in self._forwards.values():
            for forward in forwards.of.values():
                forward.close()


def _work_of(client: HealthClient) -> RankProgress:
    try:
        return client.work()
    except NoResponseError:
        return read_work(b"")


def _combine(works: Sequence[RankProgress], ranks: int) -> RankProgress:
    """Combine the progress of replicas: number their ranks consecutively and add their outputs."""
    item = ranks // len(works)
    emitted = [work.emitted for work in works if work.emitted is not None]

    def numbered(counts: Sequence[Mapping[int, float]]) -> dict[int, float]:  # a role is one rank, for any dp
        return {
            server * item + rank: count
            for server, ranks_of in enumerate(counts)
            for rank, count in ranks_of.items()
            if rank < item
        }

    return RankProgress(
        done=numbered([work.done for work in works]),
        decoded=numbered([work.decoded for work in works]),
        emitted=sum(emitted) if emitted else None,
    )


def watch(names: Sequence[str], home: Home, *, show: Callable[[WatchEvent], None], alerts: Alerts) -> None:
    """Watch servers until Ctrl-C, or until the restart policy of each allows no further restart.

    Raises StartError for an unknown name, NameTakenError if another watcher has it, and RestartLimitError at the end.
    """
    backend = LiveBackend()
    with ExitStack() as stack:
        stack.callback(backend.close)
        snapshots = [_first_snapshot(backend, name) for name in dict.fromkeys(names)]
        for snapshot in snapshots:
            stack.enter_context(_only_watch(home, snapshot.name))
            backend.api_key_for(snapshot.api_key_env)
        watchers = [Watcher(snapshot.name, backend, snapshot) for snapshot in snapshots]
        try:
            _run(watchers, show, alerts)
        except KeyboardInterrupt:
            _interrupt(backend.restarts)
            raise
        finally:
            for name, failed in alerts.close():
                show(_event(_watcher_of(watchers, name), PendingEvent(EventKind.ALERT_FAILED, failed)))
    problems = [Problem(f"`{item.name}`: {item.ended}", hint=f"`deploy diagnose {item.name}`") for item in watchers]
    first = names[0]
    hint = f"`deploy diagnose {first}` shows why; then `deploy restart {first}` and `deploy watch {first}`"
    raise RestartLimitError("gave up: none of the watched servers is healthy", problems=problems, hint=hint)


def _watcher_of(watchers: Sequence[Watcher], name: str) -> Watcher:
    return next(watcher for watcher in watchers if watcher.name == name)


def _event(watcher: Watcher, pending: PendingEvent) -> WatchEvent:
    return WatchEvent(
        time=datetime.now().astimezone().isoformat(timespec="seconds"),
        name=watcher.name,
        event=pending.kind,
        detail=pending.detail,
        run=watcher.snapshot.run,
        alert=pending.alert,
        seconds=None if pending.seconds is None else round(pending.seconds, 1),
    )


def _run(watchers: Sequence[Watcher], show: Callable[[WatchEvent], None], alerts: Alerts) -> None:
    def emit(watcher: Watcher, pending: PendingEvent) -> None:
        event = _event(watcher, pending)
        show(event)
        for failed in alerts.send(event.to_dict()) if pending.alert else ():
            emit(watcher, PendingEvent(EventKind.ALERT_FAILED, failed))

    for watcher in watchers:
        for pending in watcher.begin(time.monotonic(), time.time()):
            emit(watcher, pending)
    while alerts.in_flight or not all(watcher.ended for watcher in watchers):
        time.sleep(_TICK)
        for name, failed in alerts.failed():
            emit(_watcher_of(watchers, name), PendingEvent(EventKind.ALERT_FAILED, failed))
        for watcher in watchers:
            for pending in watcher.step(time.monotonic(), time.time()):
                emit(watcher, pending)


def _first_snapshot(backend: LiveBackend, name: str) -> ServerSnapshot:
    pending = backend.take_snapshot(name)
    while (snapshot := pending.outcome()) is None:
        time.sleep(_TICK / 5)
    if isinstance(snapshot, SnapshotFailure):
        kind: type[DeployError] = {2: UsageError, 6: StartError}.get(snapshot.code, HostError)
        raise kind(snapshot.message, hint=snapshot.hint)
    return snapshot


def _only_watch(home: Home, name: str) -> AbstractContextManager[object]:
    """Hold the watch lock of a name, which the kernel releases if the process dies. Raises NameTakenError."""
    try:
        return hold(home.runs / FileName(name) / ".watch")
    except LockHeldError as error:
        message = f"another `deploy watch` is watching `{name}` (pid {error.holder})"
        raise NameTakenError(message, hint=f"`kill {error.holder}` stops that one") from error


def _interrupt(restarts: Sequence[Program]) -> None:
    """Interrupt running restarts; each stops the server that it has started."""
    running = [program for program in restarts if program.code is None]
    for program in running:
        program.send(signal.SIGINT)
    for program in running:
        program.wait()


def _parse_snapshot(data: dict[str, Any]) -> ServerSnapshot | SnapshotFailure:
    if "code" in data:
        return _parse(SnapshotFailure, data)
    tuples = {key: tuple(data[key]) for key in ("processes", "restarted_at", "replica_urls")}
    return _parse(ServerSnapshot, {**data, **tuples})


def _parse_restart(data: dict[str, Any]) -> RestartResult:
    """Parse a result; an unknown outcome, from a newer version, is a failure.

    The next snapshot shows the actual state.
    """
    is_known = data["outcome"] in [*RestartOutcome]
    outcome = RestartOutcome(data["outcome"]) if is_known else RestartOutcome.FAILED
    return _parse(RestartResult, {**data, "outcome": outcome})


def _parse(kind: type[T], data: dict[str, Any]) -> T:
    """Parse the fields of a result; drop fields that a newer version adds. Raises TypeError if one is missing."""
    return kind(**{field.name: data[field.name] for field in fields(cast("Any", kind)) if field.name in data})
