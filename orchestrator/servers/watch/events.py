"""Events of `deploy watch`, and the rule for alerts."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, NamedTuple

# Share of `unhealthy_after`. By then a busy server has made progress, and no restart has begun.
_ALERT_AFTER: Final = 0.5


class EventKind(StrEnum):
    """The kind of an event."""

    WATCHING = "watching"  # the server is healthy
    UNHEALTHY = "unhealthy"  # a rank or the gateway does not answer; no restart yet
    RECOVERED = "recovered"  # without a restart
    RUNTIME_RESTARTED = "runtime-restarted"  # for example by Docker
    DIED = "died"  # a restart begins
    RESTARTED = "restarted"  # and verified
    RESTART_FAILED = "restart-failed"
    MOVED = "moved"  # its newest run is on another host
    STOPPED = "stopped"  # by a person; it is not restarted
    WAITING = "waiting"  # for another command, a job queue, or disk space
    GAVE_UP = "gave-up"  # the restart policy allows no further restart
    ALERT_FAILED = "alert-failed"


@dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """One line of the output. `seconds`: from the detection of a death until the new server is verified."""

    time: str  # ISO 8601
    name: str
    event: EventKind
    detail: str
    run: str
    alert: bool  # the receivers get it too
    seconds: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the event as plain data."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def to_text(self) -> str:
        """Return the event as a line of text."""
        duration = "" if self.seconds is None else f", {self.seconds:.1f} s after the death was detected"
        return f"{self.time[11:19]}  {self.name}  {self.event}{f': {self.detail}' if self.detail else ''}{duration}"


class PendingEvent(NamedTuple):
    """An event without its server and time; `seconds` is the time since a death was detected."""

    kind: EventKind
    detail: str
    seconds: float | None = None
    alert: bool = False


@dataclass
class EventLog:
    """The last event of one server; times are monotonic.

    `emit` decides which events are alerts. Every event is an alert at once, with two exceptions: `unhealthy` is an
    alert once, after it has lasted for a while, and `recovered` only after such an alert. A long queue, a long prefill
    or a slow Docker daemon passes without a restart: 14 times in 27 minutes of full load.
    """

    last: EventKind | None = None
    _detail: str = ""
    _since: float = 0.0  # of the current kind
    _alerted: bool = False  # of the current `unhealthy`

    def emit(self, kind: EventKind, detail: str, seconds: float | None = None, *, lasted: bool = False) -> PendingEvent:
        """Return the event. `lasted` means that the server has been unhealthy long enough for an alert."""
        emit_unhealthy = kind is EventKind.UNHEALTHY
        alert = {
            EventKind.WATCHING: False,
            EventKind.UNHEALTHY: lasted and not self._alerted,
            EventKind.RECOVERED: self._alerted,
        }.get(kind, True)
        self._alerted = emit_unhealthy and (lasted or self._alerted)
        self.last, self._detail = kind, detail
        return PendingEvent(kind, detail, seconds, alert)

    def emit_once(self, kind: EventKind, detail: str, now: float) -> Iterator[PendingEvent]:
        """Yield the event unless it equals the last one."""
        if (self.last, self._detail) != (kind, detail):
            self._since = now
            yield self.emit(kind, detail)

    def emit_unhealthy(
        self, detail: str, now: float, *, since: float | None, unhealthy_after: float
    ) -> Iterator[PendingEvent]:
        """Yield `unhealthy` if its detail is new, or once after it has lasted. `since` is its beginning, if known."""
        if self.last is not EventKind.UNHEALTHY:
            self._since = now
        lasted = now - (self._since if since is None else since) >= _ALERT_AFTER * unhealthy_after
        if (self.last, self._detail) != (EventKind.UNHEALTHY, detail) or (lasted and not self._alerted):
            yield self.emit(EventKind.UNHEALTHY, detail, lasted=lasted)
