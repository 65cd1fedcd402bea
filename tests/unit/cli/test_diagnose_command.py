"""Test `deploy diagnose` with a log file, stdin, a server name, and no argument."""

import io
import json
import re
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner
from unreadable import unreadable

from orchestrator.cli.diagnose import _log_of
from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.runtimes import REGISTRY
from orchestrator.runtimes.supervisor.record import Record, write_record

LOGS = Path(__file__).parents[1] / "diagnose/logs"
PORT_TAKEN = LOGS / "port-taken/match-real-0.5.14.log"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    monkeypatch.setattr("orchestrator.servers.servers.REGISTRY", {})  # no server runs, and Docker is not queried
    return tmp_path


def diagnose(*args: str, stdin: bytes | None = None) -> str:
    return CliRunner().invoke(app, ["diagnose", *args], input=stdin, catch_exceptions=False).stdout


def add_run(home: Path, name: str, run: str, log: Path) -> None:
    folder = home / "runs" / name / run
    folder.mkdir(parents=True)
    (folder / "server.log").write_bytes(log.read_bytes())


def test_log_file_is_diagnosed_as_text() -> None:
    assert diagnose(str(PORT_TAKEN)).splitlines()[0] == "fatal: port-taken"


def test_log_file_is_diagnosed_as_json() -> None:
    data = json.loads(diagnose(str(PORT_TAKEN), "--json"))
    assert data["cause"] == "port-taken"
    assert "address already in use" in data["matches"][0]["evidence"][0]["text"]


def test_stdin_is_diagnosed() -> None:
    assert diagnose("-", stdin=PORT_TAKEN.read_bytes()).startswith("fatal: port-taken")


def test_endless_line_on_stdin_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.BufferedReader(io.BytesIO(bytes(16 << 20)))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stdin))
    tracemalloc.start()
    try:
        with _log_of("-", Home(Path("/nonexistent")), None) as (lines, _):
            assert sum(map(len, lines))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_invalid_utf8_on_stdin_is_diagnosed() -> None:
    assert diagnose("-", stdin=b"\xff\xfe\n" + PORT_TAKEN.read_bytes()).startswith("fatal: port-taken")


def test_latest_log_of_removed_server_is_diagnosed(home: Path) -> None:
    add_run(home, "glm", "20260702T101431Z-aaaa", LOGS / "no-weights/match-real-0.5.14.log")
    add_run(home, "glm", "20260703T101431Z-aaaa", PORT_TAKEN)
    assert diagnose("glm").startswith("fatal: port-taken")


def test_exit_reason_is_shown_if_log_lacks_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process writes no last line."""
    monkeypatch.setattr("orchestrator.servers.servers.REGISTRY", {"process": REGISTRY["process"]})
    add_run(home, "tiny", "20260703T101431Z-bbbb", LOGS / "no-weights/match-real-0.5.14.log")
    record = Record(
        name="tiny",
        profile="cpu-tiny",
        plan_digest="d1",
        url="http://127.0.0.1:30010",
        argv=("python3",),
        started_at="2026-07-03T10:00:00+00:00",
        token="/t",
        supervisor="boot/10/100",
        server="boot/11/101",
        output=None,
        exit_code=137,
        ended_at=(datetime.now(UTC) - timedelta(seconds=3)).isoformat(),
        stopped=False,
    )
    write_record(home / "runs/tiny/20260703T101431Z-bbbb", record)
    (home / "runs/tiny/20260703T101431Z-bbbb/server.log").write_text("nothing of note\n")
    lines = diagnose("tiny").splitlines()
    assert re.fullmatch("`tiny` is not running: killed by SIGKILL, [34] s ago", lines[0])
    status = CliRunner().invoke(app, ["status"])
    assert "note: `tiny`: killed by SIGKILL; `deploy restart tiny` restarts it" in status.stderr
    assert lines[2] == "no known signature; the last 1 of 1 lines:"
    assert json.loads(diagnose("tiny", "--json"))["ended"].startswith("`tiny` is not running: killed by SIGKILL")


def test_latest_run_is_diagnosed_without_a_name(home: Path) -> None:
    add_run(home, "glm", "20260702T101431Z-aaaa", PORT_TAKEN)
    add_run(home, "tiny", "20260703T101431Z-bbbb", LOGS / "no-weights/match-real-0.5.14.log")
    assert diagnose().startswith("fatal: no-weights")
    add_run(home, "unreadable", "20260704T101431Z-cccc", PORT_TAKEN)
    with unreadable(home / "runs" / "unreadable"):
        assert diagnose().startswith("fatal: no-weights")


def test_unknown_server_suggests_nearest_name(home: Path) -> None:
    add_run(home, "glm-mi355x", "20260702T101431Z-aaaa", PORT_TAKEN)
    with pytest.raises(UsageError) as caught:
        diagnose("glm-mi35x")
    assert caught.value.hint == "did you mean `glm-mi355x`?"


def test_diagnose_without_any_run_is_rejected() -> None:
    with pytest.raises(UsageError, match="no run found"):
        diagnose()
