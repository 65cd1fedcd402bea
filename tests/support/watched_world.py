"""A simulated server and clock for tests of the watcher."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from orchestrator.engine.liveness import RankProgress
from orchestrator.servers.watch.events import EventKind, PendingEvent
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult, ServerSnapshot, SnapshotFailure
from orchestrator.servers.watch.watcher import Watcher

T = TypeVar("T")
BOOT, SNAPSHOT_SECONDS, TICK = 40.0, 1.0, 0.5  # seconds of a start, of a snapshot, and between two steps
UNHEALTHY = 120.0
HEALTHY = ServerSnapshot(
    name="owl",
    run="run-1",
    url="http://127.0.0.1:1",
    host="",
    model="tiny",
    processes=(),
    status="running",
    exit_reason="",
    dead="",
    restarts=0,
    busy=False,
    wanted=True,
    ready=True,
    by_watch=False,
    ranks=2,
    replica_urls=(),
    api_key_env=None,
    unhealthy_after=UNHEALTHY,
    max_attempts=3,
    window=3600,
    restarted_at=(),
)


VERIFIED = RestartResult(outcome=RestartOutcome.VERIFIED, message="proven")


@dataclass
class Later(Generic[T]):
    """A call whose result is available at a time."""

    world: "World"
    at: float
    call: Callable[[], T]

    def outcome(self) -> T | None:
        return self.call() if self.world.now >= self.at else None


@dataclass
class World:
    """A server and a clock, with a record of the events."""

    now: float = 1000.0
    snapshot: ServerSnapshot = HEALTHY
    # Seconds for each rank and, last, for the gateway; None: never.
    answers_after: list[float | None] = field(default_factory=lambda: [0.1, 0.1, 0.1])
    makes_progress: list[bool] = field(default_factory=lambda: [False, False])  # whether each rank makes progress
    counts_work: bool = True
    decodes: bool = True  # the progress is decoding, not a long prefill
    emits: bool = True  # decoded tokens are sent to clients
    snapshot_error: str = ""
    outcome: RestartResult = VERIFIED
    records: bool = True  # a restart is recorded in the run directory
    dies_again: float | None = None  # seconds after each restart
    events: list[tuple[float, EventKind, str]] = field(default_factory=list)
    alerted: list[tuple[float, str]] = field(default_factory=list)
    restarted_at: list[float] = field(default_factory=list)
    snapshots: int = 0
    work_done: list[float] = field(default_factory=lambda: [0.0, 0.0])
    emitted: float = 0.0
    plans: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def listens(self, _: ServerSnapshot) -> bool:
        return self.snapshot.status == "running"

    def probe_rank(self, _: ServerSnapshot, rank: int) -> Later[int | str]:
        if self.snapshot.status != "running":
            return Later(self, self.now, lambda: "Connection refused")
        after = self.answers_after[rank]
        return Later(self, self.now + (1e9 if after is None else after), lambda: 200)

    def work(self, _: ServerSnapshot) -> Later[RankProgress]:
        done = dict(enumerate(self.work_done)) if self.counts_work else {}
        work = RankProgress(done=done, decoded=done if self.decodes else dict.fromkeys(done, 5.0), emitted=self.emitted)
        return Later(self, self.now, lambda: work)

    def take_snapshot(self, name: str) -> Later[ServerSnapshot | SnapshotFailure]:
        assert name == "owl"
        self.snapshots += 1
        unseen = SnapshotFailure(message=self.snapshot_error, hint="", code=4)
        return Later(self, self.now + SNAPSHOT_SECONDS, lambda: unseen if self.snapshot_error else self.snapshot)

    def restart(self, snapshot: ServerSnapshot, reason: str) -> Later[RestartResult]:
        assert reason
        self.restarted_at.append(self.now)
        taken = self.outcome

        def done() -> RestartResult:
            if taken.outcome in {RestartOutcome.VERIFIED, RestartOutcome.FAILED} and self.records:
                self.snapshot = replace(snapshot, restarted_at=(*snapshot.restarted_at, self.now), by_watch=True)
            if taken.outcome is RestartOutcome.VERIFIED:
                self.snapshot = replace(
                    self.snapshot,
                    run=f"run-{len(self.restarted_at) + 1}",
                    status="running",
                    exit_reason="",
                    dead="",
                    restarts=0,
                )
                self.answers_after = [0.1, 0.1, 0.1]
                if self.dies_again is not None:
                    self.plans.append((self.now + self.dies_again, self.die))
            return taken

        return Later(self, self.now + BOOT, done)

    def die(self, how: str = "killed by SIGKILL") -> None:
        self.snapshot = replace(self.snapshot, status="exited", exit_reason=how)

    def pass_by(self, watcher: Watcher, seconds: float) -> None:
        """Advance the clock, with a step of the watcher at each tick."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            for moment, happen in [plan for plan in self.plans if plan[0] <= self.now]:
                self.plans.remove((moment, happen))
                happen()
            self.work_done = [done + TICK * on for done, on in zip(self.work_done, self.makes_progress, strict=True)]
            self.emitted += self.emits and any(self.makes_progress)
            self._note(watcher.step(self.now, self.now))

    def watcher(self) -> Watcher:
        made = Watcher("owl", self, self.snapshot)
        self._note(made.begin(self.now, self.now))
        return made

    def _note(self, events: Iterator[PendingEvent]) -> None:
        for event in events:
            self.events.append((self.now, event.kind, event.detail))
            self.alerted += [(self.now, event.kind.value)] if event.alert else []

    @property
    def kinds(self) -> list[str]:
        return [kind.value for _, kind, _ in self.events]
