"""Texts about the state of a server."""

from datetime import UTC, datetime

import pytest

from orchestrator.runtimes.base import ServerState, Status

NOON = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)


def state(status: Status, *, started: str | None = None, ended: str | None = None, detail: str = "") -> ServerState:
    code = 137 if status is Status.EXITED else None
    return ServerState(status=status, exit_code=code, restarts=0, started_at=started, ended_at=ended, detail=detail)


@pytest.mark.parametrize(
    ("started", "age"),
    [
        ("2026-07-01T11:59:54+00:00", "6 s"),
        ("2026-07-01T11:58:10+00:00", "110 s"),
        ("2026-07-01T11:48:00+00:00", "12 min"),
        ("2026-07-01T06:59:00+00:00", "5 h"),
        ("2026-06-28T12:00:00.123456789Z", "3 days"),  # as Docker writes it
        ("2026-07-01T12:00:30+00:00", "0 s"),  # the clock is ahead
        (None, ""),
    ],
)
def test_age_is_formatted_for_people(started: str | None, age: str) -> None:
    assert state(Status.RUNNING, started=started).age(NOON) == age
    assert state(Status.EXITED, started="2026-01-01T00:00:00Z", ended=started).age(NOON) == age


def test_exit_summary_has_cause_and_age() -> None:
    assert state(Status.EXITED).exit_summary == "exited with 137"
    assert state(Status.EXITED, detail="killed by SIGKILL").exit_summary == "killed by SIGKILL"
    now = datetime.now(UTC).isoformat()
    assert state(Status.EXITED, ended=now, detail="killed by SIGKILL").exit_summary.startswith("killed by SIGKILL, ")
