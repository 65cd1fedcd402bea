"""What `deploy watch` makes of what it sees: pure, but for the clock that it is given.

Nothing here outlives the process: what a server is, who ended it and how often it was healed is read anew at each look
(`standing.py`). What is kept is when each rank was last seen to live, as a clock only tells of while it runs.

::

    a rank is asked for a token every 5 s ──answers──▶ it lives
                │ does not, for 3 s            work it counts grows, and comes out ──▶ it lives
                ▼
    a look: runtime, records, process table ──▶ exited · a part lost · restarted · silent for too long ──▶ heal
                                            ──▶ ended by a person · another command works on it ──▶ wait
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Protocol, TypeVar

from orchestrator.engine.liveness import REJECTED, SLOW_AFTER_S, RankProgress, makes_progress, output_stalled
from orchestrator.servers.watch.events import EventKind, EventLog, PendingEvent
from orchestrator.servers.watch.snapshot import RestartResult, ServerSnapshot, SnapshotFailure

T_co = TypeVar("T_co", covariant=True)

ASKED_EVERY: Final = 5.0  # seconds between two questions to a rank
_KNOCKED_EVERY: Final = 1.0  # at its port, which costs nothing: a server that has ended is noticed there
_QUIET: Final = 300.0  # seconds between two looks at a server that answers: a look takes a second of CPU
_UNWELL: Final = 10.0  # at one that does not
_AGAIN: Final = 1.0  # before a part counts as lost, and where nobody answers at all
_SLOW_AGAIN: Final = 30.0  # because of one that is slow to answer
_SILENT: Final = 20.0  # seconds without an answer and without work that are worth telling
_FIRST, _LONGEST = 5.0, 60.0  # at one that is not to be healed; twice as long each time
_OK: Final = 200
GATEWAY: Final = -1  # what is asked beside the ranks of several servers, and does no work of its own


# After what it is told that a server is watched again.
_RESTING: Final = {EventKind.WAITING, EventKind.STOPPED, EventKind.DIED, EventKind.FAILED, EventKind.GAVE_UP}


class Pending(Protocol[T_co]):
    """Something that was begun."""

    def outcome(self) -> T_co | None:
        """What came of it; None while it is under way."""


class WatchBackend(Protocol):
    """How a server is asked, looked at and healed. Nothing here waits."""

    def listens(self, standing: ServerSnapshot) -> bool:
        """Whether its processes run, as far as they are known, and its port takes connections.

        An open port alone says little: another program may listen there once the server has ended.
        """

    def token_of(self, standing: ServerSnapshot, rank: int) -> Pending[int | str]:
        """Ask a rank for a token, or `GATEWAY` whether it is there: the status of the answer, or why there is none."""

    def work(self, standing: ServerSnapshot) -> Pending[RankProgress]:
        """Ask what each rank has done so far."""

    def look(self, name: str) -> Pending[ServerSnapshot | SnapshotFailure]:
        """Look at all that is known of a server."""

    def heal(self, standing: ServerSnapshot, why: str) -> Pending[RestartResult]:
        """Start it again as it came up last."""


@dataclass
class _Rank:
    """What is asked of a rank now, and how it took that; times of the clock."""

    number: int
    asked: float
    question: Pending[int | str] | None = None
    trouble: str = ""  # why there is no answer; "" while it answers
    silent_since: float = 0.0  # where there is trouble: since then it has not got on either
    refusal: str = ""


@dataclass
class Watcher:
    """The watch over one server. `step` is called often, with the clock and the time of day."""

    name: str
    means: WatchBackend
    standing: ServerSnapshot
    ended: str = ""  # why this watch has given up
    _ranks: list[_Rank] = field(default_factory=list)
    _says: EventLog = field(default_factory=EventLog)
    _accepted: int = 0  # restarts by the runtime that are no news
    _lost: str = ""  # as the last look saw it
    _died: float = 0.0
    _counted: int = -1  # healings on record when the last one was begun
    _failures: int = 0  # healings that failed since it served, however long each took
    _stepped: float = 0.0
    _looked: float = 0.0
    _slow: float = -inf  # when a slow answer was a reason to look
    _knocked: float = 0.0
    _open: bool = True  # its port, when somebody knocked last
    _next_look: float = 0.0
    _pause: float = _FIRST
    _look: Pending[ServerSnapshot | SnapshotFailure] | None = None
    _work: Pending[RankProgress] | None = None
    _before: RankProgress | None = None  # as it was read last
    _held_up: bool = False  # what the ranks decode does not come out
    _work_asked: float = -inf
    _healing: Pending[RestartResult] | None = None
    _retry_at: float = -inf  # when a restart that this machine has prevented is tried again; -inf: none was prevented

    def begin(self, now: float, wall: float) -> Iterator[PendingEvent]:
        """Take the standing that it was made with as the first look."""
        self._accepted, self._stepped = self.standing.restarts, now
        self._forget(now)
        yield from self._judge(now, wall)

    def step(self, now: float, wall: float) -> Iterator[PendingEvent]:
        """Go on: what there is to tell."""
        self._leave_out(now - self._stepped)
        self._stepped = now
        if self._healing is not None:
            yield from self._mind_healing(self._healing, now)
            return
        if self._look is not None and (seen := self._look.outcome()) is not None:
            self._look = None
            yield from self._take(seen, now, wall)
        if self._may_be_asked:
            self._knock(now)
            for rank in self._ranks:
                self._ask(rank, now)
            self._read_work(now)
        if self._look is None and now >= max(self._next_look, self._retry_at) and self._healing is None:
            self._look = self.means.look(self.name)

    @property
    def _may_be_asked(self) -> bool:
        seen = self.standing
        return not self.ended and self._healing is None and _left_alone(seen) is None and seen.status == "running"

    def _leave_out(self, gap: float) -> None:
        """Time in which this process did not run, as on a machine that slept, is nobody's silence."""
        if gap > ASKED_EVERY:
            for rank in self._ranks:
                rank.silent_since += gap

    def _forget(self, now: float) -> None:
        """Begin anew: nothing that was seen of the ranks before counts."""
        numbers = (*range(self.standing.ranks), *([GATEWAY] if self.standing.behind else []))
        self._ranks = [_Rank(number=number, asked=now - ASKED_EVERY) for number in numbers]
        self._lost, self._work, self._open = "", None, True
        self._before, self._held_up = None, False

    def _mind_healing(self, healing: Pending[RestartResult], now: float) -> Iterator[PendingEvent]:
        if (healed := healing.outcome()) is None:
            return
        self._healing, self._next_look = None, now
        if healed.postponed:
            self._wait(now)
            self._retry_at = self._next_look
            yield from self._says.once(EventKind.WAITING, f"cannot restart yet, will retry: {healed.message}", now)
            return
        self._pause, self._retry_at = _FIRST, -inf
        self._forget(now)
        if healed.others:
            return
        if healed.code == 0:
            self.standing, self._accepted, self._failures = replace(self.standing, run=healed.run), 0, 0
            yield self._says.tell(EventKind.SERVES, healed.message, now - self._died)
        elif healed.attempted:
            self._failures += 1
            yield self._says.tell(EventKind.FAILED, healed.message)
        else:
            yield self._give_up(f"it cannot be started again: {healed.message}", now)

    def _give_up(self, why: str, now: float) -> PendingEvent:
        self.ended, self._next_look = why, now + _QUIET
        return self._says.tell(EventKind.GAVE_UP, why)

    def _take(self, seen: ServerSnapshot | SnapshotFailure, now: float, wall: float) -> Iterator[PendingEvent]:
        """Take what a look has seen."""
        if isinstance(seen, SnapshotFailure):
            self._wait(now)
            if self.ended:
                return
            yield from self._unwell(f"it cannot be looked at: {seen.message}", now)
            return
        if self.ended:
            if seen.by_watch or seen.run == self.standing.run:
                self._next_look = now + _QUIET
                return
            self.ended, self._failures = "", 0  # a person has started it anew, while others are still watched
        before, self.standing = self.standing, seen
        if (before.run, before.ranks) != (seen.run, seen.ranks):
            self._accepted = 0
            self._forget(now)
        yield from self._judge(now, wall)

    def _judge(self, now: float, wall: float) -> Iterator[PendingEvent]:
        seen, self._looked = self.standing, now
        if (rest := _left_alone(seen)) is not None:
            self._retry_at = -inf
            self._forget(now)
            self._wait(now)
            yield from self._unwell(rest[1], now) if rest[0] is EventKind.UNWELL else self._says.once(*rest, now)
            return
        if why := self._death(now):
            yield from self._heal(why, now, wall)
            return
        self._pause, self._retry_at = _FIRST, -inf
        self._lost = seen.lost
        if trouble := seen.lost or self._silence(now) or next(filter(None, (rank.refusal for rank in self._ranks)), ""):
            hung = min((rank.silent_since for rank in self._ranks if rank.trouble), default=inf) + seen.unhealthy_after
            self._next_look = now + (_AGAIN if seen.lost else max(_AGAIN, min(_UNWELL, hung - now)))
            yield from self._unwell(trouble, now)
            return
        self._next_look = now + _QUIET
        yield from self._is_well()

    def _is_well(self) -> Iterator[PendingEvent]:
        if self.standing.restarts > self._accepted and not any(rank.trouble for rank in self._ranks):
            self._accepted = self.standing.restarts
            yield self._says.tell(EventKind.RESTARTED, f"by its runtime, {self._accepted} times by now, and answers")
        if self._says.last is None or self._says.last in _RESTING:
            yield self._says.tell(EventKind.WATCHING, self.standing.url)
        elif self._says.last is EventKind.UNWELL:
            yield self._says.tell(EventKind.WELL, "")

    def _silent(self, now: float) -> list[_Rank]:
        """Those that have been silent for longer than a busy rank is."""
        most = min(_SILENT, self.standing.unhealthy_after)
        return [rank for rank in self._ranks if rank.trouble and now - rank.silent_since >= most]

    def _silence(self, now: float) -> str:
        return "; ".join(self._said(rank) for rank in self._silent(now))

    def _unwell(self, detail: str, now: float) -> Iterator[PendingEvent]:
        since = min((rank.silent_since for rank in self._silent(now)), default=None)
        return self._says.unwell(detail, now, since=since, healed_after=self.standing.unhealthy_after)

    def _said(self, rank: _Rank) -> str:
        which = "its gateway" if rank.number == GATEWAY else f"rank {rank.number}"
        return f"{which}: {rank.trouble}" if len(self._ranks) > 1 else rank.trouble

    def _death(self, now: float) -> str:
        """Why it is dead, "" while it may live."""
        seen = self.standing
        if seen.status != "running":
            return seen.ending or "its start was cut off"
        if not seen.ready:
            return "its start was cut off"
        if seen.lost and seen.lost == self._lost:
            return seen.lost
        if seen.restarts > self._accepted and any(rank.trouble for rank in self._ranks):
            return "it died, and its runtime has started it again"
        for rank in self._ranks:
            if rank.trouble and now - rank.silent_since >= seen.unhealthy_after:
                held_up = self._held_up and rank.number != GATEWAY
                how = "what is decoded has not come out" if held_up else "it has not got on"
                return f"{self._said(rank)}; {how} for {now - rank.silent_since:.0f} s"
        return ""

    def _heal(self, why: str, now: float, wall: float) -> Iterator[PendingEvent]:
        seen = self.standing
        recent = [moment for moment in seen.healed if wall - moment < seen.window]
        if max(len(recent), self._failures) >= seen.limit:
            counted = f"{len(recent)} restarts within {seen.window:g} s were of no use" if recent else "it died"
            if self._failures > len(recent):
                counted = f"{self._failures} restarts in a row have failed"
            yield self._give_up(f"{why}; {counted}, and `healing.restarts` is {seen.limit}", now)
            return
        if self._says.last is EventKind.FAILED:
            if len(seen.healed) <= self._counted:  # it would be tried for ever
                yield self._give_up(f"{why}; its restart left no record", now)
                return
        elif self._retry_at == -inf:
            self._died = now
        self._counted = len(seen.healed)
        if self._retry_at == -inf:
            yield self._says.tell(EventKind.DIED, f"{why}; restart {len(recent) + 1} of {seen.limit}")
        self._healing = self.means.heal(seen, why)

    def _wait(self, now: float) -> None:
        self._next_look = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST)

    def _knock(self, now: float) -> None:
        if now - self._knocked >= _KNOCKED_EVERY:
            self._knocked, before, self._open = now, self._open, self.means.listens(self.standing)
            if before and not self._open:
                self._next_look = min(self._next_look, now)

    def _ask(self, rank: _Rank, now: float) -> None:
        """Take the rank's answer, and ask it anew where it owes none."""
        if rank.question is not None and (answer := rank.question.outcome()) is not None:
            rank.question = None
            if answer == _OK or answer in REJECTED:
                rank.trouble = ""
                self._note_refusal(rank, "" if answer == _OK else f"it refuses to be asked for a token: {answer}", now)
            else:
                self._suffers(rank, answer if isinstance(answer, str) else f"it answers {answer}", since=now)
                self._next_look = min(self._next_look, max(now, self._looked + _AGAIN))
        if rank.question is None and now - rank.asked >= ASKED_EVERY:
            rank.asked, rank.question = now, self.means.token_of(self.standing, rank.number)
        elif rank.question is not None and not rank.trouble and now - rank.asked >= SLOW_AFTER_S:
            self._suffers(rank, "no answer", since=now - SLOW_AFTER_S)
            if now - self._slow >= _SLOW_AGAIN:
                self._slow, self._next_look = now, min(self._next_look, now)
        if self._silence(now) and self._says.last not in {None, EventKind.UNWELL}:
            self._next_look = min(self._next_look, max(now, self._looked + _AGAIN))

    def _note_refusal(self, rank: _Rank, refusal: str, now: float) -> None:
        if refusal != rank.refusal:
            self._next_look = min(self._next_look, now)
        rank.refusal = refusal

    def _suffers(self, rank: _Rank, trouble: str, *, since: float) -> None:
        if not rank.trouble:
            rank.silent_since = since
        rank.trouble = trouble

    def _read_work(self, now: float) -> None:
        """While a rank does not answer, see whether it gets on: a long prefill, a long queue."""
        if self._work is not None and (work := self._work.outcome()) is not None:
            self._work, before, self._before = None, self._before, work
            self._held_up = output_stalled(before, work)
            for rank in self._ranks:
                if rank.trouble and makes_progress(rank.number, before, work):
                    rank.silent_since = now
        if not any(rank.trouble for rank in self._ranks):
            self._before = None
        elif self._work is None and now - self._work_asked >= ASKED_EVERY:
            self._work_asked, self._work = now, self.means.work(self.standing)


def _left_alone(seen: ServerSnapshot) -> tuple[EventKind, str] | None:
    """Why a server is not to be healed, whatever has become of it."""
    if seen.busy:
        return EventKind.WAITING, "another `deploy` command works on it"
    if not seen.wanted:
        return EventKind.STOPPED, "it was not the watch that ended it; a start under this name is watched again"
    if seen.status == "pending":
        return EventKind.WAITING, seen.ending
    if seen.status == "unknown":
        return EventKind.UNWELL, "its record cannot be read"
    if seen.status == "running" and not (seen.ready or seen.by_watch):
        never = f"it was never ready: `deploy restart {seen.name}` starts it anew"
        mixed = f"its replicas are of two plans: `deploy status {seen.name}` shows them"
        return EventKind.WAITING, mixed if seen.behind else never
    return None
