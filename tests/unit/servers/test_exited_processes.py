"""Exited processes of a server, detected from the process table."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.core.errors import SmokeError
from orchestrator.core.paths import Home
from orchestrator.engine.launch import process_names
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import ServerState, Status, Unit
from orchestrator.servers.group import Server
from orchestrator.servers.servers import Servers, exited_processes, record_processes
from orchestrator.servers.start.verify import smoke_server
from orchestrator.servers.status import require_healthy, statuses

READY = ("python -m sglang.launch_server --dp-size 2", "sglang::data_parallel_controller", "sglang::scheduler_DP0")
READY = (*READY, "sglang::scheduler_DP1", "sglang::detokenizer", "python -c from multiprocessing.spawn import main")


class Table:
    """A runtime with only a process table."""

    def __init__(self, titles: tuple[str, ...]) -> None:
        self.running = titles

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        return self.running


class OneServer(Table):
    """A process table with one running server."""

    def __init__(self, titles: tuple[str, ...], *units: Unit) -> None:
        super().__init__(titles)
        self.units = units
        self.started: str | None = None

    def find(self, _: str | None = None) -> tuple[Unit, ...]:
        return self.units

    def state(self, _: Unit) -> ServerState:
        return ServerState(status=Status.RUNNING, exit_code=None, restarts=0, started_at=self.started, detail="")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "runs/two/1"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def handle(run_dir: Path) -> Unit:
    return Unit(
        runtime="process",
        name="two",
        profile="h200-dp2",
        plan_digest="d",
        url="http://127.0.0.1:1",
        run_dir=str(run_dir),
        runtime_id="1",
        state=ServerState(status=Status.RUNNING),
    )


def server(table: Table, unit: Unit) -> Server:
    return Server.of(unit, table)  # type: ignore[arg-type]  # an incomplete runtime


def dead_after(handle: Unit, *, ready: tuple[str, ...], running: tuple[str, ...]) -> str:
    record_processes(server(Table(ready), handle), 12.34)
    return exited_processes(server(Table(running), handle))


def test_sglang_process_titles_are_translated() -> None:
    assert process_names(READY) == ("data_parallel_controller", "detokenizer", "rank DP0", "rank DP1")
    assert process_names(["sglang::scheduler", "sglang::scheduler_DP1_TP3_EP3   "]) == ("rank DP1 TP3 EP3", "scheduler")


@pytest.mark.parametrize(
    ("dead", "message"),
    [
        ((), ""),
        (("sglang::scheduler_DP1",), "rank DP1 has exited while the server runs"),
        (("sglang::scheduler_DP0", "sglang::detokenizer"), "detokenizer, rank DP0 have exited while the server runs"),
    ],
)
def test_processes_dead_since_ready_are_named(handle: Unit, dead: tuple[str, ...], message: str) -> None:
    assert dead_after(handle, ready=READY, running=tuple(title for title in READY if title not in dead)) == message


def test_unknown_processes_are_not_reported_dead(handle: Unit) -> None:
    assert exited_processes(server(Table(READY[:1]), handle)) == ""  # never ready: nothing was recorded
    assert dead_after(handle, ready=READY, running=()) == ""  # no process table
    assert dead_after(handle, ready=READY[:1], running=READY) == ""


def test_dead_rank_is_reported_without_querying_server(
    handle: Unit, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to a server without one rank take 54 s in `status` and up to 180 s in `smoke`."""

    def query(*_: object, **__: object) -> None:
        raise AssertionError("the server was queried")

    monkeypatch.setattr("orchestrator.servers.start.verify.is_healthy", query)
    monkeypatch.setattr("orchestrator.servers.start.verify.run_smoke_test", query)
    (run_dir / "plan.json").write_text(load("cpu-tiny").plan.to_json())
    record_processes(server(Table(READY), handle), 12.34)
    running = tuple(title for title in READY if title != "sglang::scheduler_DP1")
    servers = Servers(Home(tmp_path), {"process": OneServer(running, handle)})  # type: ignore[dict-item]

    results = statuses(servers, "two", check_health=True)
    assert [(server.health, server.detail) for server in results] == [
        ("unhealthy", "rank DP1 has exited while the server runs")
    ]
    with pytest.raises(SmokeError, match="`two` is running but unhealthy: rank DP1 has exited"):
        require_healthy(servers, results, explicit=True)
    with pytest.raises(SmokeError, match="`two` failed its smoke test: rank DP1 has exited"):
        smoke_server(servers, "two", strict_kernels=False)


def test_restarted_server_has_no_exited_processes(handle: Unit, run_dir: Path) -> None:
    """A new pod does not have all processes of the previous pod yet."""
    runtime = OneServer(READY[:1], handle)
    record_processes(server(Table(READY), handle), 12.34)
    recorded = datetime.fromtimestamp((run_dir / "processes.json").stat().st_mtime, UTC)
    runtime.started = (recorded + timedelta(seconds=1)).isoformat()
    message = exited_processes(server(runtime, handle))
    assert message.startswith("restarted 0 s ago, not ready yet")
    runtime.started = (recorded - timedelta(seconds=1)).isoformat()
    assert "rank DP0, rank DP1 have exited while the server runs" in exited_processes(server(runtime, handle))


def test_partly_healthy_replicas_are_reported(
    handle: Unit, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway responds all the time."""
    monkeypatch.setattr("orchestrator.servers.start.verify.is_healthy", lambda _: False)
    (run_dir / "plan.json").write_text(load("cpu-tiny", overrides=["replicas=2"]).plan.to_json())
    replicas = (replace(handle, run_dir=str(run_dir / f"replica-{number}")) for number in (1, 2))
    servers = Servers(Home(tmp_path), {"process": OneServer(READY, handle, *replicas)})  # type: ignore[dict-item]
    with pytest.raises(SmokeError, match="not all 2 replicas are healthy at its gateway"):
        require_healthy(servers, statuses(servers, "two", check_health=True), explicit=True)


class Listed(OneServer):
    """A runtime that must only be listed."""

    def state(self, _: Unit) -> ServerState:
        raise AssertionError("the state of a unit was queried")

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        raise AssertionError("the processes of a unit were queried")


def test_status_without_health_check_only_lists(handle: Unit, run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "plan.json").write_text(load("cpu-tiny", overrides=["replicas=2"]).plan.to_json())
    first, second = (replace(handle, run_dir=str(run_dir / f"replica-{number}")) for number in (1, 2))
    for replica in (first, second):
        record_processes(server(Table(READY), replica), 12.34)
    ended = replace(second, state=ServerState(status=Status.EXITED, exit_code=137))
    servers = Servers(Home(tmp_path), {"process": Listed(READY, handle, first, ended)})  # type: ignore[dict-item]
    [status] = statuses(servers, "two", check_health=False)
    assert status.detail == "replica 2 of 2 is not running: exited with 137"


def test_replica_without_readable_record_fails_smoke_test(
    handle: Unit, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "plan.json").write_text(load("cpu-tiny", overrides=["replicas=2"]).plan.to_json())
    second = replace(handle, run_dir=str(run_dir / "replica-2"))
    servers = Servers(Home(tmp_path), {"process": OneServer(READY, handle, second)})  # type: ignore[dict-item]
    monkeypatch.setattr(
        "orchestrator.servers.start.verify.smoke_test", lambda *_, **__: pytest.fail("a server was queried")
    )

    waiting = "replica 1 of 2 is not started yet"
    assert [server.detail for server in statuses(servers, "two", check_health=True)] == [waiting]
    (run_dir / "replica-1").mkdir()
    message = "replica 1 of 2 has no readable record"
    assert [server.detail for server in statuses(servers, "two", check_health=True)] == [message]
    with pytest.raises(SmokeError, match=message):
        smoke_server(servers, "two", strict_kernels=False)
    (run_dir / "replica-1/exit.json").write_text('{"asked": "removed"}')  # removed, and added again
    assert [server.detail for server in statuses(servers, "two", check_health=True)] == [waiting]
