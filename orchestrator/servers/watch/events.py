"""What `deploy watch` tells of a server, and of what of it somebody is alerted."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, NamedTuple

# Of the time after which it is healed: what is busy has got on by then, and nothing has been done yet.
_ALERTED_AFTER: Final = 0.5


class EventKind(StrEnum):
    """What is told."""

    WATCHING = "watching"  # it serves, or is about to be looked at
    UNWELL = "unwell"  # something does not answer, and may yet
    WELL = "well"  # it does again, by itself
    RESTARTED = "restarted"  # by its runtime
    DIED = "died"  # it is healed now
    SERVES = "serves"  # healed and proven
    FAILED = "failed"  # the healing did
    STOPPED = "stopped"  # by a person: it is not healed
    WAITING = "waiting"  # another command works on it, or it was never ready
    GAVE_UP = "gave up"
    ALERT_FAILED = "alert failed"


@dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """One line of what is told; `seconds` from the notice of a death until it serves."""

    time: str  # ISO 8601
    name: str
    event: EventKind
    detail: str
    run: str
    alert: bool  # the receivers of alerts are told as well
    seconds: float | None = None

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def to_text(self) -> str:
        """A line for people."""
        took = "" if self.seconds is None else f", {self.seconds:.1f} s after its death was noticed"
        return f"{self.time[11:19]}  {self.name}  {self.event}{f': {self.detail}' if self.detail else ''}{took}"


class PendingEvent(NamedTuple):
    """Something to tell; `seconds` since a death was noticed."""

    kind: EventKind
    detail: str
    seconds: float | None = None
    alert: bool = False


@dataclass
class EventLog:
    """What was told last of one server; times are the clock's.

    The one rule of alerts is in `tell`: of everything at once, but of what is `unwell` once, and only when it has
    lasted, and of `well` only after that. A queue, a long prefill, a Docker daemon that is slow pass by themselves: 14
    times in 27 minutes of full load (docs/verified.md, "Watching").
    """

    last: EventKind | None = None
    _detail: str = ""
    _since: float = 0.0  # that it is of this kind
    _alerted: bool = False  # of what is unwell now

    def tell(self, kind: EventKind, detail: str, seconds: float | None = None, *, lasted: bool = False) -> PendingEvent:
        """Tell it; `lasted`: what is unwell has been so for long."""
        unwell = kind is EventKind.UNWELL
        alert = {
            EventKind.WATCHING: False,
            EventKind.UNWELL: lasted and not self._alerted,
            EventKind.WELL: self._alerted,
        }.get(kind, True)
        self._alerted = unwell and (lasted or self._alerted)
        self.last, self._detail = kind, detail
        return PendingEvent(kind, detail, seconds, alert)

    def once(self, kind: EventKind, detail: str, now: float) -> Iterator[PendingEvent]:
        """Tell it, unless it was told last."""
        if (self.last, self._detail) != (kind, detail):
            self._since = now
            yield self.tell(kind, detail)

    def unwell(self, detail: str, now: float, *, since: float | None, healed_after: float) -> Iterator[PendingEvent]:
        """Tell it, unless it was told last, and has not lasted; `since` when it is so, where that is known."""
        if self.last is not EventKind.UNWELL:
            self._since = now
        lasted = now - (self._since if since is None else since) >= _ALERTED_AFTER * healed_after
        if (self.last, self._detail) != (EventKind.UNWELL, detail) or (lasted and not self._alerted):
            yield self.tell(EventKind.UNWELL, detail, lasted=lasted)
