"""`deploy logs --since`: what is younger than a moment, of a server that runs and of one that is gone."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.runs.run_dir import RunDir, open_run
from orchestrator.runtimes.saved_logs import lines_since
from orchestrator.servers.group import RunningServer
from orchestrator.servers.logs import log_lines, parse_since
from orchestrator.servers.servers import Servers

NOW = datetime(2026, 11, 22, 14, 30, 0, 5, tzinfo=timezone(timedelta(hours=1)))
LOG = (
    "a warning",
    "[2026-11-22 10:00:00] begins",
    "[2026-11-22 10:00:05 TP0] loads",
    "a trace of it",
    "[2026-11-22 10:00:09 TP1] serves",
)
BEGUN = datetime(2026, 11, 22, 9, 59, 58, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("5m", "2026-11-22T14:25:00+01:00"),
        ("2h", "2026-11-22T12:30:00+01:00"),
        ("1d1h30m5s", "2026-11-21T12:59:55+01:00"),
        ("14:05", "2026-11-22T14:05:00+01:00"),
        ("2026-11-21T14:05", "2026-11-21T14:05:00+01:00"),
        ("2026-11-21T14:05:06Z", "2026-11-21T14:05:06+00:00"),
        ("2026-11-21", "2026-11-21T00:00:00+01:00"),
    ],
)
def test_since_accepts_durations_and_times(text: str, moment: str) -> None:
    assert parse_since(text, NOW).isoformat() == moment


@pytest.mark.parametrize("text", ["", "5", "m", "yesterday", "25:00", "5m ago", "-5m"])
def test_invalid_since_is_rejected_with_example(text: str) -> None:
    with pytest.raises(UsageError, match="is neither a time nor a duration") as caught:
        parse_since(text, NOW)
    assert "--since 5m" in caught.value.hint


def test_line_without_timestamp_inherits_previous_time() -> None:
    since = datetime(2026, 11, 22, 10, 0, 5, tzinfo=UTC)
    assert list(lines_since(LOG, since, started=BEGUN, zone=UTC)) == list(LOG[2:])
    assert list(lines_since(LOG, since.replace(second=6), started=BEGUN, zone=UTC)) == list(LOG[4:])
    assert list(lines_since(LOG, BEGUN, started=BEGUN, zone=UTC)) == list(LOG)
    assert list(lines_since(LOG, BEGUN, started=None, zone=UTC)) == list(LOG[1:])
    assert list(lines_since(LOG[:4], since, started=BEGUN, zone=timezone(timedelta(hours=1)))) == []


class Running:
    """A runtime with one server; two more lines come while its log is followed."""

    def __init__(self) -> None:
        self.asked: list[datetime | None] = []

    def find(self, name: str | None) -> tuple[RunningServer, ...]:
        return (
            RunningServer(runtime="it", name=name or "", profile="", plan_digest="", url="", run_dir="", runtime_id=""),
        )

    def logs(self, _handle: RunningServer, *, follow: bool, since: datetime | None) -> Iterator[str]:
        self.asked.append(since)
        yield from ("a", "b", "c", *(("d", "e") if follow else ()))


def test_running_server_log_is_limited_and_followed(tmp_path: Path) -> None:
    servers = Servers(Home(tmp_path), {"it": (runtime := Running())})  # type: ignore[dict-item]
    assert list(log_lines(servers, "owl", follow=True, last=1, since=BEGUN)) == ["c", "d", "e"]
    assert set(runtime.asked) == {BEGUN}


@pytest.mark.parametrize(("runtime", "shown"), [("docker", LOG[4:]), ("process", ())])
def test_saved_container_log_is_read_as_utc(
    runtime: str, shown: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process keeps the zone of its machine: here an hour ahead, so that its 10:00:09 was 9:00:09 UTC."""
    monkeypatch.setenv("TZ", "XXX-1")
    time.tzset()
    try:
        servers = Servers(Home(tmp_path), {})
        plan = plan_of("cpu-tiny", runtime=runtime)
        run = open_run(servers.home, "owl", plan)
        run.log.write_text("".join(f"{line}\n" for line in LOG))
        run.save("plan.json", plan.to_dict())
        old = run.path.rename(run.path.with_name("20261122T080000Z-abc"))
        assert RunDir(old).started == datetime(2026, 11, 22, 8, tzinfo=UTC)
        assert RunDir(tmp_path / "other-name").started is None
        since = datetime(2026, 11, 22, 10, 0, 6, tzinfo=UTC)
        assert tuple(log_lines(servers, "owl", follow=False, since=since)) == shown
    finally:
        monkeypatch.undo()
        time.tzset()
