"""The state machine behind `deploy watch`; pure, with an injected clock.

No state here needs to outlive the process: each snapshot (`snapshot.py`) reads again the state of a server, who stopped
it and how often it was restarted. Only the last progress of each rank stays in memory, because its times come from
this process's clock.

::

    every 5 s: ask each rank for a token ──answer──▶ alive
                │ none within 3 s          its counters grow, and output leaves ──▶ alive
                ▼
    snapshot ──▶ exited · a process dead · restarted by its runtime · no progress for too long ──▶ restart
             ──▶ stopped by a person · another command holds the name ──▶ wait
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Protocol, TypeVar

from orchestrator.engine.liveness import REJECTED, SLOW_AFTER_S, RankProgress, makes_progress, output_stalled
from orchestrator.servers.watch.events import EventKind, EventLog, PendingEvent
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult, ServerSnapshot, SnapshotFailure

T_co = TypeVar("T_co", covariant=True)

PROBE_INTERVAL: Final = 5.0  # seconds between two requests to a rank
_PORT_INTERVAL: Final = 1.0  # seconds; a connection costs nothing and reveals an exit
_HEALTHY_INTERVAL: Final = 300.0  # seconds between two snapshots of a healthy server; one takes a second of CPU
_UNHEALTHY_INTERVAL: Final = 10.0  # seconds between two snapshots of an unhealthy server
_RECHECK: Final = 1.0  # seconds before a second snapshot confirms a dead process
_SLOW_RECHECK: Final = 30.0  # seconds between two snapshots because of a slow answer
_REPORT_AFTER: Final = 20.0  # seconds without an answer and without progress before an event
_MIN_BACKOFF, _MAX_BACKOFF = 5.0, 60.0  # seconds, doubled each time, while no restart is allowed
_OK: Final = 200
GATEWAY: Final = -1  # probed like a rank, but without progress of its own
# After one of these, a healthy server is reported as watched.
_NOT_WATCHING: Final = {
    EventKind.WAITING,
    EventKind.MOVED,
    EventKind.STOPPED,
    EventKind.DIED,
    EventKind.RESTART_FAILED,
    EventKind.GAVE_UP,
}


class Pending(Protocol[T_co]):
    """An operation in progress."""

    def outcome(self) -> T_co | None:
        """Return the result; None while the operation runs."""


class WatchBackend(Protocol):
    """Probes, inspects and restarts a server. No method waits."""

    def listens(self, snapshot: ServerSnapshot) -> bool:
        """Return whether the server's known processes run and its port accepts connections.

        An open port alone proves little: another program may listen there after the server has exited.
        """

    def probe_rank(self, snapshot: ServerSnapshot, rank: int) -> Pending[int | str]:
        """Request a token from a rank, or the health of `GATEWAY`; the outcome is the HTTP status or an error."""

    def work(self, snapshot: ServerSnapshot) -> Pending[RankProgress]:
        """Read the progress of each rank."""

    def take_snapshot(self, name: str) -> Pending[ServerSnapshot | SnapshotFailure]:
        """Take a snapshot of a server."""

    def restart(self, snapshot: ServerSnapshot, reason: str) -> Pending[RestartResult]:
        """Restart the server with its last plan."""


@dataclass
class _Rank:
    """The probes of a rank; times are monotonic."""

    number: int
    probed_at: float
    probe: Pending[int | str] | None = None
    problem: str = ""  # why the rank does not answer; "" while it does
    stalled_since: float = 0.0  # since when a rank with a problem has made no progress
    rejection: str = ""


@dataclass
class Watcher:
    """Watches one server. Call `step` often, with the monotonic clock and the Unix time."""

    name: str
    backend: WatchBackend
    snapshot: ServerSnapshot
    ended: str = ""  # why it gave up
    _ranks: list[_Rank] = field(default_factory=list)
    _events: EventLog = field(default_factory=EventLog)
    _known_restarts: int = 0  # reported restarts by the runtime
    _dead: str = ""  # dead processes in the last snapshot
    _died_at: float = 0.0
    _restarts_on_record: int = -1  # their number when the last restart began
    _failed_restarts: int = 0  # since the server was last verified
    _stepped: float = 0.0
    _snapshot_at: float = 0.0
    _slow_seen_at: float = -inf  # when a slow answer caused a snapshot
    _port_checked_at: float = 0.0
    _port_open: bool = True
    _next_snapshot: float = 0.0
    _backoff: float = _MIN_BACKOFF
    _snapshot_task: Pending[ServerSnapshot | SnapshotFailure] | None = None
    _work: Pending[RankProgress] | None = None
    _before: RankProgress | None = None  # the last progress read
    _output_stalled: bool = False  # the ranks decode, but no output leaves the server
    _work_read_at: float = -inf
    _restarting: Pending[RestartResult] | None = None
    _retry_at: float = -inf  # when to retry a restart that this host prevented; -inf: no retry

    def begin(self, now: float, wall: float) -> Iterator[PendingEvent]:
        """Evaluate the first snapshot."""
        self._known_restarts, self._stepped = self.snapshot.restarts, now
        self._reset(now)
        yield from self._evaluate(now, wall)

    def step(self, now: float, wall: float) -> Iterator[PendingEvent]:
        """Advance to `now`; yield new events."""
        self._discount_gap(now - self._stepped)
        self._stepped = now
        if self._restarting is not None:
            yield from self._follow_restart(self._restarting, now)
            return
        if self._snapshot_task is not None and (snapshot := self._snapshot_task.outcome()) is not None:
            self._snapshot_task = None
            yield from self._apply(snapshot, now, wall)
        if self._can_probe:
            self._check_port(now)
            for rank in self._ranks:
                self._probe(rank, now)
            self._read_work(now)
        if self._snapshot_task is None and now >= max(self._next_snapshot, self._retry_at) and self._restarting is None:
            self._snapshot_task = self.backend.take_snapshot(self.name)

    @property
    def _can_probe(self) -> bool:
        may_run = not self.ended and self._restarting is None
        return may_run and _hold_reason(self.snapshot) is None and self.snapshot.status == "running"

    def _discount_gap(self, gap: float) -> None:
        """Exclude from stalls the time in which this process did not run, as on a suspended host."""
        if gap > PROBE_INTERVAL:
            for rank in self._ranks:
                rank.stalled_since += gap

    def _reset(self, now: float) -> None:
        """Forget all earlier probes."""
        numbers = (*range(self.snapshot.ranks), *([GATEWAY] if self.snapshot.replica_urls else []))
        self._ranks = [_Rank(number=number, probed_at=now - PROBE_INTERVAL) for number in numbers]
        self._dead, self._work, self._port_open = "", None, True
        self._before, self._output_stalled = None, False

    def _follow_restart(self, pending: Pending[RestartResult], now: float) -> Iterator[PendingEvent]:
        if (result := pending.outcome()) is None:
            return
        self._restarting, self._next_snapshot = None, now
        if result.outcome is RestartOutcome.POSTPONED:
            self._back_off(now)
            self._retry_at = self._next_snapshot
            yield from self._events.emit_once(
                EventKind.WAITING, f"cannot restart yet, will retry: {result.message}", now
            )
            return
        self._backoff, self._retry_at = _MIN_BACKOFF, -inf
        self._reset(now)
        if result.outcome is RestartOutcome.SUPERSEDED:
            return
        if result.outcome is RestartOutcome.VERIFIED:
            self.snapshot, self._known_restarts, self._failed_restarts = replace(self.snapshot, run=result.run), 0, 0
            yield self._events.emit(EventKind.RESTARTED, result.message, now - self._died_at)
        elif result.outcome is RestartOutcome.FAILED:
            self._failed_restarts += 1
            yield self._events.emit(EventKind.RESTART_FAILED, result.message)
        else:
            yield self._give_up(f"cannot restart: {result.message}", now)

    def _give_up(self, reason: str, now: float) -> PendingEvent:
        self.ended, self._next_snapshot = reason, now + _HEALTHY_INTERVAL
        return self._events.emit(EventKind.GAVE_UP, reason)

    def _apply(self, snapshot: ServerSnapshot | SnapshotFailure, now: float, wall: float) -> Iterator[PendingEvent]:
        """Apply a new snapshot."""
        if isinstance(snapshot, SnapshotFailure):
            self._back_off(now)
            if self.snapshot.is_remote:  # its host may not answer probes either
                for rank in self._ranks:
                    rank.stalled_since = now
            if self.ended:
                return
            yield from self._report_unhealthy(f"cannot inspect the server: {snapshot.message}", now)
            return
        if self.ended:
            if snapshot.by_watch or snapshot.run == self.snapshot.run:
                self._next_snapshot = now + _HEALTHY_INTERVAL
                return
            self.ended, self._failed_restarts = "", 0  # a person has restarted it while other servers are watched
        before, self.snapshot = self.snapshot, snapshot
        if (before.run, before.ranks) != (snapshot.run, snapshot.ranks):
            self._known_restarts = 0
            self._reset(now)
        if before.host != snapshot.host:
            yield self._events.emit(EventKind.MOVED, f"its newest run is on {snapshot.host or 'this host'}")
        yield from self._evaluate(now, wall)

    def _evaluate(self, now: float, wall: float) -> Iterator[PendingEvent]:
        snapshot, self._snapshot_at = self.snapshot, now
        if (hold := _hold_reason(snapshot)) is not None:
            self._retry_at = -inf
            self._reset(now)
            self._back_off(now)
            unhealthy = hold[0] is EventKind.UNHEALTHY
            yield from self._report_unhealthy(hold[1], now) if unhealthy else self._events.emit_once(*hold, now)
            return
        if reason := self._death_reason(now):
            yield from self._restart(reason, now, wall)
            return
        self._backoff, self._retry_at = _MIN_BACKOFF, -inf
        self._dead = snapshot.dead
        rejection = next(filter(None, (rank.rejection for rank in self._ranks)), "")
        if problem := snapshot.dead or self._stall_summary(now) or rejection:
            stalled_since = min((rank.stalled_since for rank in self._ranks if rank.problem), default=inf)
            delay = min(_UNHEALTHY_INTERVAL, stalled_since + snapshot.unhealthy_after - now)  # until it counts as dead
            self._next_snapshot = now + (_RECHECK if snapshot.dead else max(_RECHECK, delay))
            yield from self._report_unhealthy(problem, now)
            return
        self._next_snapshot = now + _HEALTHY_INTERVAL
        yield from self._report_healthy()

    def _report_healthy(self) -> Iterator[PendingEvent]:
        if self.snapshot.restarts > self._known_restarts and not any(rank.problem for rank in self._ranks):
            self._known_restarts = self.snapshot.restarts
            yield self._events.emit(EventKind.RUNTIME_RESTARTED, f"by its runtime, {self._known_restarts} times so far")
        if self._events.last is None or self._events.last in _NOT_WATCHING:
            yield self._events.emit(EventKind.WATCHING, self.snapshot.location)
        elif self._events.last is EventKind.UNHEALTHY:
            yield self._events.emit(EventKind.RECOVERED, "")

    def _stalled_ranks(self, now: float) -> list[_Rank]:
        """Return the ranks without progress for longer than a busy rank needs."""
        at_least = min(_REPORT_AFTER, self.snapshot.unhealthy_after)
        return [rank for rank in self._ranks if rank.problem and now - rank.stalled_since >= at_least]

    def _stall_summary(self, now: float) -> str:
        return "; ".join(self._describe(rank) for rank in self._stalled_ranks(now))

    def _report_unhealthy(self, detail: str, now: float) -> Iterator[PendingEvent]:
        since = min((rank.stalled_since for rank in self._stalled_ranks(now)), default=None)
        return self._events.emit_unhealthy(detail, now, since=since, unhealthy_after=self.snapshot.unhealthy_after)

    def _describe(self, rank: _Rank) -> str:
        subject = "gateway" if rank.number == GATEWAY else f"rank {rank.number}"
        return f"{subject}: {rank.problem}" if len(self._ranks) > 1 else rank.problem

    def _death_reason(self, now: float) -> str:
        """Return the reason why the server counts as dead; "" while it may be alive."""
        snapshot = self.snapshot
        if snapshot.status != "running":
            return snapshot.exit_reason or "its start was interrupted"
        if not snapshot.ready:
            return "its start was interrupted"
        if snapshot.dead and snapshot.dead == self._dead:
            return snapshot.dead
        if snapshot.restarts > self._known_restarts and any(rank.problem for rank in self._ranks):
            return "the server exited, and its runtime restarted it"
        for rank in self._ranks:
            if rank.problem and now - rank.stalled_since >= snapshot.unhealthy_after:
                lacking = "no output" if self._output_stalled and rank.number != GATEWAY else "no progress"
                return f"{self._describe(rank)}; {lacking} for {now - rank.stalled_since:.0f} s"
        return ""

    def _restart(self, reason: str, now: float, wall: float) -> Iterator[PendingEvent]:
        snapshot = self.snapshot
        recent = [at for at in snapshot.restarted_at if wall - at < snapshot.window]
        if max(len(recent), self._failed_restarts) >= snapshot.max_attempts:
            restarts = f"{len(recent)} restarts within {snapshot.window:g} s did not help"
            if self._failed_restarts > len(recent):
                restarts = f"{self._failed_restarts} restarts in a row failed"
            elif not recent:
                restarts = "no restart is allowed"
            limit = f"`restart_policy.max_attempts` is {snapshot.max_attempts}"
            yield self._give_up(f"{reason}; {restarts}, and {limit}", now)
            return
        if self._events.last is EventKind.RESTART_FAILED:
            if len(snapshot.restarted_at) <= self._restarts_on_record:  # otherwise the watcher would retry it forever
                yield self._give_up(f"{reason}; the restart left no record", now)
                return
        elif self._retry_at == -inf:
            self._died_at = now
        self._restarts_on_record = len(snapshot.restarted_at)
        if self._retry_at == -inf:
            yield self._events.emit(EventKind.DIED, f"{reason}; restart {len(recent) + 1} of {snapshot.max_attempts}")
        self._restarting = self.backend.restart(snapshot, reason)

    def _back_off(self, now: float) -> None:
        self._next_snapshot = now + self._backoff
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)

    def _check_port(self, now: float) -> None:
        if now - self._port_checked_at >= _PORT_INTERVAL:
            self._port_checked_at, before, self._port_open = now, self._port_open, self.backend.listens(self.snapshot)
            if before and not self._port_open:
                self._next_snapshot = min(self._next_snapshot, now)

    def _probe(self, rank: _Rank, now: float) -> None:
        """Read the rank's answer, and send the next request if none is open."""
        if rank.probe is not None and (answer := rank.probe.outcome()) is not None:
            rank.probe = None
            if answer == _OK or answer in REJECTED:
                rank.problem, before = "", rank.rejection
                rank.rejection = "" if answer == _OK else f"rejects a request for a token: {answer}"
                if rank.rejection != before:
                    self._next_snapshot = min(self._next_snapshot, now)
            else:
                self._set_problem(rank, answer if isinstance(answer, str) else f"HTTP {answer}", since=now)
                self._next_snapshot = min(self._next_snapshot, max(now, self._snapshot_at + _RECHECK))
        if rank.probe is None and now - rank.probed_at >= PROBE_INTERVAL:
            rank.probed_at, rank.probe = now, self.backend.probe_rank(self.snapshot, rank.number)
        elif rank.probe is not None and not rank.problem and now - rank.probed_at >= SLOW_AFTER_S:
            self._set_problem(rank, "no answer", since=now - SLOW_AFTER_S)
            if now - self._slow_seen_at >= _SLOW_RECHECK:
                self._slow_seen_at, self._next_snapshot = now, min(self._next_snapshot, now)
        if self._stall_summary(now) and self._events.last not in {None, EventKind.UNHEALTHY}:
            self._next_snapshot = min(self._next_snapshot, max(now, self._snapshot_at + _RECHECK))

    def _set_problem(self, rank: _Rank, problem: str, *, since: float) -> None:
        if not rank.problem:
            rank.stalled_since = since
        rank.problem = problem

    def _read_work(self, now: float) -> None:
        """Check whether a rank without an answer makes progress, as in a long prefill or behind a long queue."""
        if self._work is not None and (work := self._work.outcome()) is not None:
            self._work, before, self._before = None, self._before, work
            self._output_stalled = output_stalled(before, work)
            for rank in self._ranks:
                if rank.problem and makes_progress(rank.number, before, work):
                    rank.stalled_since = now
        if not any(rank.problem for rank in self._ranks):
            self._before = None
        elif self._work is None and now - self._work_read_at >= PROBE_INTERVAL:
            self._work_read_at, self._work = now, self.backend.work(self.snapshot)


def _hold_reason(snapshot: ServerSnapshot) -> tuple[EventKind, str] | None:
    """Return the reason why the server must not be restarted, whatever its state; None if it may be."""
    if snapshot.busy:
        return EventKind.WAITING, "another `deploy` command is changing the server"
    if not snapshot.wanted:
        return EventKind.STOPPED, "by another command; a new start under this name will be watched"
    if snapshot.status == "pending":
        return EventKind.WAITING, snapshot.exit_reason
    if snapshot.status == "unknown":
        return EventKind.UNHEALTHY, "cannot read its record"
    if snapshot.status == "running" and not (snapshot.ready or snapshot.by_watch):
        never = f"the server was never ready; `deploy restart {snapshot.name}` restarts it"
        mixed = f"the replicas have two plans; `deploy status {snapshot.name}` shows them"
        return EventKind.WAITING, mixed if snapshot.replica_urls else never
    return None
