"""`deploy watch`: look after servers until somebody ends it.

This process imports no runtime: what is known of a server is looked up, and a server is healed, by programs of their
own (`healer.py`). So it stays below 30 MB, and its death leaves every server, and a healing that has begun, as it is.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
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
from orchestrator.servers.watch.alerts import Alerts
from orchestrator.servers.watch.events import EventKind, PendingEvent, WatchEvent
from orchestrator.servers.watch.snapshot import RestartResult, ServerSnapshot, SnapshotFailure
from orchestrator.servers.watch.watcher import GATEWAY, Watcher

_TICK: Final = 0.25  # seconds
_LOOK_WITHIN: Final = 120.0  # seconds: a Docker daemon may be slow
T = TypeVar("T")


class _Asked(Generic[T]):
    """A question that a thread waits for."""

    def __init__(self, ask: Callable[[], T], instead: Callable[[NoResponseError], T]) -> None:
        self._outcome: T | None = None

        def wait() -> None:
            try:
                self._outcome = ask()
            except NoResponseError as error:
                self._outcome = instead(error)

        start_thread_without_signals(threading.Thread(target=wait, daemon=True))

    def outcome(self) -> T | None:
        """See `Pending`."""
        return self._outcome


class _Run(Generic[T]):
    """A program of ours that prints its result."""

    def __init__(
        self,
        words: Sequence[str],
        read: Callable[[dict[str, Any]], T],
        broken: Callable[[str], T],
        within: float | None,
    ) -> None:
        self._read, self._broken = read, broken
        self._end = None if within is None else time.monotonic() + within
        argv = python_module_argv("orchestrator.servers.watch.worker", *words)
        self.program: Program = start(argv, env=os.environ, output=PIPE, errors=2 if words[0] == "heal" else DEVNULL)

    def outcome(self) -> T | None:
        """See `Pending`."""
        if self.program.code is None:
            if self._end is None or time.monotonic() < self._end:
                return None
            self.program.end(signal.SIGKILL)
            return self._broken(f"no answer within {_LOOK_WITHIN:g} s")
        said = self.program.output.read().decode(errors="replace")
        self.program.output.close()
        try:
            return self._read(json.loads(said))
        except (ValueError, TypeError, KeyError):
            return self._broken(f"its program ended with {self.program.code}")


@dataclass
class LiveBackend:
    """The means of a real watch, see `WatchBackend`."""

    healings: list[Program] = field(default_factory=list)
    keys: dict[str, Secret] = field(default_factory=dict)

    def listens(self, standing: ServerSnapshot) -> bool:
        """See `WatchBackend.listens`."""
        return all(map(find_process, standing.processes)) and self._pulse(standing).listens()

    def token_of(self, standing: ServerSnapshot, rank: int) -> _Asked[int | str]:
        """See `WatchBackend.token_of`."""
        if rank == GATEWAY:
            return _Asked[int | str](partial(self._pulse(standing).gateway, within=_LOOK_WITHIN), str)
        server, own = divmod(rank, standing.ranks // max(len(standing.behind), 1))
        ask = partial(self._pulse(standing, server).token_of, own, within=max(standing.unhealthy_after, _LOOK_WITHIN))
        return _Asked[int | str](ask, str)

    def work(self, standing: ServerSnapshot) -> _Asked[RankProgress]:
        """See `WatchBackend.work`."""
        pulses = [self._pulse(standing, server) for server in range(max(len(standing.behind), 1))]
        return _Asked[RankProgress](
            lambda: _together([_work_of(pulse) for pulse in pulses], standing.ranks), _nothing_done
        )

    def look(self, name: str) -> _Run[ServerSnapshot | SnapshotFailure]:
        """See `WatchBackend.look`."""
        return _Run(("look", name), _read_look, lambda why: SnapshotFailure(message=why, hint="", code=1), _LOOK_WITHIN)

    def heal(self, standing: ServerSnapshot, why: str) -> _Run[RestartResult]:
        """See `WatchBackend.heal`."""
        broken = _broken_healing
        run = _Run(("heal", standing.name, standing.run, why), partial(_read, RestartResult), broken, None)
        self.healings.append(run.program)
        return run

    def key_of(self, variable: str | None) -> Secret | None:
        """The API key in a variable. Raises UsageError where it is not set."""
        if variable is None:
            return None
        if not (value := os.environ.get(variable)):
            what = f"`{variable}` is not set, and a server is asked for a token, and started again, with its API key"
            raise UsageError(what, hint=f"export {variable}=…")
        return self.keys.setdefault(variable, read_key(value, where=variable))

    def _pulse(self, standing: ServerSnapshot, server: int | None = None) -> HealthClient:
        """Of what has its URL, or of one of several servers behind that."""
        key = None
        with suppress(UsageError):  # a later start has another key: it refuses to be asked, and the other servers stay
            key = self.key_of(standing.api_key_env)
        url = standing.url if server is None or not standing.behind else standing.behind[server]
        return HealthClient(url=url, key=key, model=standing.model)


def _work_of(pulse: HealthClient) -> RankProgress:
    try:
        return pulse.work()
    except NoResponseError as error:
        return _nothing_done(error)


def _nothing_done(_: NoResponseError) -> RankProgress:
    return read_work(b"")


def _together(works: Sequence[RankProgress], ranks: int) -> RankProgress:
    """The work of several servers, their ranks counted on; what came out is that of all."""
    each = ranks // len(works)
    came_out = [work.came_out for work in works if work.came_out is not None]
    return RankProgress(
        done={server * each + rank: done for server, work in enumerate(works) for rank, done in work.done.items()},
        decoded={
            server * each + rank: made for server, work in enumerate(works) for rank, made in work.decoded.items()
        },
        came_out=sum(came_out) if came_out else None,
    )


def watch(
    names: Sequence[str],
    home: Home,
    *,
    show: Callable[[WatchEvent], None],
    alerts: Alerts,
    means: LiveBackend | None = None,
) -> None:
    """Watch servers until Ctrl-C, or until all of them were given up.

    Raises StartError for a name that nothing was started under, NameTakenError where another watch has one,
    HealingError in the end.
    """
    means = means or LiveBackend()
    with ExitStack() as stack:
        standings = [_first_look(means, name) for name in dict.fromkeys(names)]
        for seen in standings:
            stack.enter_context(_only_watch(home, seen.name))
            means.key_of(seen.api_key_env)
        vigils = [Watcher(seen.name, means, seen) for seen in standings]
        try:
            _go_on(vigils, show, alerts)
        except KeyboardInterrupt:
            _interrupt(means.healings)
            raise
        finally:
            for name, failed in alerts.close():
                show(_event(_named(vigils, name), PendingEvent(EventKind.ALERT_FAILED, failed)))
    problems = [Problem(f"`{vigil.name}`: {vigil.ended}", hint=f"`deploy diagnose {vigil.name}`") for vigil in vigils]
    first = names[0]
    hint = f"`deploy diagnose {first}` says why; `deploy restart {first}`, then `deploy watch {first}`, begins anew"
    raise RestartLimitError("what was watched does not serve, and is left as it is", problems=problems, hint=hint)


def _named(vigils: Sequence[Watcher], name: str) -> Watcher:
    return next(vigil for vigil in vigils if vigil.name == name)


def _event(vigil: Watcher, told: PendingEvent) -> WatchEvent:
    return WatchEvent(
        time=datetime.now().astimezone().isoformat(timespec="seconds"),
        name=vigil.name,
        event=told.kind,
        detail=told.detail,
        run=vigil.standing.run,
        alert=told.alert,
        seconds=None if told.seconds is None else round(told.seconds, 1),
    )


def _go_on(vigils: Sequence[Watcher], show: Callable[[WatchEvent], None], alerts: Alerts) -> None:
    def tell(vigil: Watcher, told: PendingEvent) -> None:
        event = _event(vigil, told)
        show(event)
        for failed in alerts.send(event.to_dict()) if told.alert else ():
            tell(vigil, PendingEvent(EventKind.ALERT_FAILED, failed))

    for vigil in vigils:
        for told in vigil.begin(time.monotonic(), time.time()):
            tell(vigil, told)
    while alerts.under_way or not all(vigil.ended for vigil in vigils):
        time.sleep(_TICK)
        for name, failed in alerts.failed():
            tell(_named(vigils, name), PendingEvent(EventKind.ALERT_FAILED, failed))
        for vigil in vigils:
            for told in vigil.step(time.monotonic(), time.time()):
                tell(vigil, told)


def _first_look(means: LiveBackend, name: str) -> ServerSnapshot:
    pending = means.look(name)
    while (seen := pending.outcome()) is None:
        time.sleep(_TICK / 5)
    if isinstance(seen, SnapshotFailure):
        kind: type[DeployError] = {2: UsageError, 6: StartError}.get(seen.code, HostError)
        raise kind(seen.message, hint=seen.hint)
    return seen


def _only_watch(home: Home, name: str) -> AbstractContextManager[object]:
    """Be the only watch of that name; the kernel frees it. Raises NameTakenError."""
    try:
        return hold(home.runs / FileName(name) / ".watch")
    except LockHeldError as error:
        message = f"another `deploy watch` has `{name}` (pid {error.holder})"
        raise NameTakenError(message, hint="end that one first") from error


def _interrupt(healings: Sequence[Program]) -> None:
    """Interrupt the starts that are under way, which take down what they have started."""
    running = [program for program in healings if program.code is None]
    for program in running:
        program.send(signal.SIGINT)
    for program in running:
        program.wait()


def _read_look(data: dict[str, Any]) -> ServerSnapshot | SnapshotFailure:
    if "code" in data:
        return _read(SnapshotFailure, data)
    listed = {key: tuple(data[key]) for key in ("processes", "healed", "behind")}
    return _read(ServerSnapshot, {**data, **listed})


def _read(kind: type[T], data: dict[str, Any]) -> T:
    """What a program of ours says, which may be of a younger version by now: what it adds is left out."""
    return kind(**{each.name: data[each.name] for each in fields(cast("Any", kind)) if each.name in data})


def _broken_healing(why: str) -> RestartResult:
    """Of a program that died: a look will tell what it has done."""
    return RestartResult(code=1, message=why, attempted=True, others=False)
