"""Run records that `deploy watch` uses: exit reasons, requests and restarts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from cluster_samples import CASES, cluster_plan
from run_samples import request_of

from orchestrator.core.errors import HostError, NameTakenError, NotReadyError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.core.secrets import Secret
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import RunDir, is_locked, name_lock, reserved_space
from orchestrator.runtimes.base import Runtime, ServerState, Status, Unit
from orchestrator.servers import rollback
from orchestrator.servers.exit_record import STOPPED_FOR_RESTART, UP_FAILED, failure_reason, record_exit
from orchestrator.servers.group import Server
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.request import UpRequest, UpResult
from orchestrator.servers.watch import recovery, restarts


class FakeRuntime:
    """A runtime with one server in the given state."""

    def __init__(self, run: RunDir, state: ServerState | None) -> None:
        self.run, self.now = run, state

    def find(self, _: str | None = None) -> tuple[Unit, ...]:
        fields = {"profile": "cpu-tiny", "plan_digest": "d", "url": "http://127.0.0.1:1", "runtime_id": "1"}
        if self.now is None:
            return ()
        run_dir = str(self.run.path)
        return (Unit(runtime="process", name="owl", run_dir=run_dir, state=self.now, **fields),)

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        return ()


RUNNING = ServerState(status=Status.RUNNING, exit_code=None, restarts=0, started_at=None, detail="")
KILLED = ServerState(status=Status.EXITED, exit_code=137, restarts=0, started_at=None, detail="killed by SIGKILL")


def write_run(home: Home, day: int = 1, *, by_watch: bool = False, ready: bool = True) -> RunDir:
    plan = load("cpu-tiny").plan
    run = RunDir(home.make_runs("owl") / f"2026070{day}T000000Z-{plan.digest[:8]}")
    run.save("plan.json", plan.to_dict())
    run.save("request.json", {"version": RECORD_VERSION, "request": asdict(request_of(by_watch=by_watch))})
    run.save("smoke.json", {"ok": True, "checks": []})
    if ready:
        run.save("processes.json", {"processes": []})
    return run


def snapshot(home: Home, run: RunDir, state: ServerState | None) -> recovery.ServerSnapshot:
    return recovery.snapshot_of(Servers(home, {"process": FakeRuntime(run, state)}), "owl")  # type: ignore[dict-item]


def test_crashed_server_is_wanted_but_stopped_server_is_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    run = write_run(home)
    crashed = snapshot(home, run, KILLED)
    assert (crashed.wanted, crashed.status, crashed.exit_reason, crashed.ready) == (
        True,
        "exited",
        "killed by SIGKILL",
        True,
    )
    assert (crashed.max_attempts, crashed.window, crashed.unhealthy_after) == (3, 3600, 300)
    assert snapshot(home, run, None).wanted is False  # removed manually
    record_exit(run, "stopped", KILLED)  # `deploy down` of a dead server
    assert snapshot(home, run, None).wanted is False


@pytest.mark.parametrize(
    ("by_watch", "reason", "wanted"),
    [
        (False, "replaced", False),
        (False, f"{UP_FAILED} with 7: not ready", False),
        (True, f"{UP_FAILED} with 7: not ready", True),
        (True, f"{UP_FAILED} with 130: interrupted", True),
        (True, "stopped", False),
        (False, STOPPED_FOR_RESTART, True),
    ],
)
def test_server_stopped_only_by_watch_is_wanted(tmp_path: Path, by_watch: bool, reason: str, wanted: bool) -> None:
    home = Home(tmp_path)
    run = write_run(home, by_watch=by_watch)
    record_exit(run, reason, RUNNING)
    assert snapshot(home, run, None).wanted is wanted


@pytest.mark.parametrize("key", ["watch", "failed"])
def test_secret_equal_to_record_word_changes_nothing(tmp_path: Path, key: str) -> None:
    """Redaction once removed the word, and a server that a restart had stopped was never restarted."""
    Secret(key)
    home = Home(tmp_path)
    for reason in (STOPPED_FOR_RESTART, failure_reason(NotReadyError("not ready"))):
        run = write_run(home, by_watch=True)
        record_exit(run, reason, RUNNING)
        assert snapshot(home, run, None).wanted


def test_restarts_are_counted_since_last_user_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for day, by_watch in ((1, False), (2, True), (3, False), (4, True), (5, True)):
        run = write_run(home, day, by_watch=by_watch)
        run.save(
            "restarts.json", {"restarts": [{"at": datetime(2026, 7, day, tzinfo=UTC).isoformat(), "reason": "died"}]}
        )
    days = [datetime.fromtimestamp(at, UTC).day for at in snapshot(home, run, RUNNING).restarted_at]
    assert days == [5, 4, 3]


def test_locked_name_is_reported_as_busy(tmp_path: Path) -> None:
    home = Home(tmp_path)
    run = write_run(home)
    assert not is_locked(home, "owl")
    with name_lock(home, "owl"):
        assert snapshot(home, run, RUNNING).busy
    assert not snapshot(home, run, RUNNING).busy


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[UpRequest]:
    """Return the requests of `up`, which locks the name and then fails."""
    received: list[UpRequest] = []

    def up(request: UpRequest, home: Home, *, recovery_command: str, on_locked: object) -> None:
        assert recovery_command
        assert callable(on_locked)
        on_locked(Servers(home, {"process": FakeRuntime(RunDir(Path(str(request.run))), KILLED)}))  # type: ignore[dict-item]
        received.append(request)
        raise NotReadyError("not ready")

    monkeypatch.setattr(rollback, "up", up)
    return received


def test_restart_repeats_last_run_and_is_recorded_first(tmp_path: Path, requests: list[UpRequest]) -> None:
    home = Home(tmp_path)
    run = write_run(home)
    result = restarts.restart_dead(home, "owl", run.path.name, "killed")
    assert (result.outcome, result.message) == ("failed", "not ready")
    assert [(call.by_watch, call.run, call.replace) for call in requests] == [(True, str(run.path), True)]
    assert run.read("restarts.json")["restarts"][0]["reason"] == "killed"  # type: ignore[index]
    assert len(snapshot(home, run, KILLED).restarted_at) == 1


@pytest.mark.parametrize("meanwhile", ["down", "up"])
def test_restart_is_superseded_by_user_action(tmp_path: Path, requests: list[UpRequest], meanwhile: str) -> None:
    home = Home(tmp_path)
    dead = write_run(home)
    if meanwhile == "down":
        record_exit(dead, "stopped", KILLED)
    else:
        write_run(home, 2)
    result = restarts.restart_dead(home, "owl", dead.path.name, "killed")
    assert (result.outcome, requests) == ("superseded", [])
    assert not dead.read("restarts.json")


def test_restart_keeps_disk_space_reserved_by_another_command(tmp_path: Path, requests: list[UpRequest]) -> None:
    home = Home(tmp_path)
    dead = write_run(home)
    with name_lock(home, "owl"), reserved_space(home, "owl"):
        restarts.restart_dead(home, "owl", dead.path.name, "killed")
        assert list(home.runs.glob("owl/.reserved-*/0"))
    assert len(requests) == 1


def test_restart_is_postponed_without_disk_space(
    tmp_path: Path, requests: list[UpRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    dead = write_run(home)
    dead.save("plan.json", load("cpu-tiny", overrides=["replicas=2"]).plan.to_dict())

    @contextmanager
    def space_for_one(_home: Home, _name: str, *, replicas: int = 1) -> Iterator[None]:
        if replicas > 1:
            raise HostError("no space")
        yield

    monkeypatch.setattr(restarts, "reserved_space", space_for_one)
    restarted = restarts.restart_dead(home, "owl", dead.path.name, "killed")
    assert (restarted.message, restarted.outcome, requests) == ("no space", "postponed", [])


@pytest.mark.parametrize(("host", "location"), [(None, ""), ("ssh://n1", " on ssh://n1")])
def test_restart_names_host_of_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str | None, location: str
) -> None:
    home = Home(tmp_path)
    run = write_run(home)
    run.save("request.json", {"version": RECORD_VERSION, "request": asdict(request_of(host=host))})
    [server] = FakeRuntime(run, RUNNING).find()
    up_result = UpResult(
        server=Server.of(replace(server, runtime="docker"), cast("Runtime", None)),
        served_name="tiny",
        smoke=None,
        seconds=3.0,
    )
    monkeypatch.setattr(restarts, "restart", lambda *_, **__: up_result)
    result = restarts.restart_dead(home, "owl", run.path.name, "killed")
    assert result.message == f"verified at {server.url}{location}, ready after 3.0 s"


def test_watching_unknown_server_is_rejected(tmp_path: Path) -> None:
    write_run(Home(tmp_path))
    with pytest.raises(StartError, match="no previous run of `owls`") as caught:
        recovery.snapshot_of(Servers(Home(tmp_path), {}), "owls")
    assert caught.value.hint == "did you mean `owl`?"


def test_user_restart_is_not_counted_as_watch_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[UpRequest] = []
    monkeypatch.setattr(rollback, "up", lambda request, *_, **__: calls.append(request))
    write_run(Home(tmp_path), by_watch=True)
    rollback.restart("owl", Home(tmp_path))
    assert [start.by_watch for start in calls] == [False]
    assert issubclass(NameTakenError, StartError)


@pytest.mark.parametrize(
    ("settings", "seconds"), [((), 300), (("restart_policy.unhealthy_after=20",), 20)], ids=["default", "shorter"]
)
def test_cluster_managed_server_is_not_watched(settings: tuple[str, ...], seconds: int) -> None:
    """The message has the time of the livenessProbe; cluster and watcher would interrupt each other's restarts."""
    plan = cluster_plan("cpu-tiny", *CASES["cpu-tiny"], *settings)
    with pytest.raises(UsageError, match=f"the cluster restarts .* makes no progress for {seconds} s") as caught:
        recovery.require_not_cluster_managed(plan, "owl")
    assert "`deploy status owl`" in caught.value.hint
    recovery.require_not_cluster_managed(load("cpu-tiny").plan, "owl")


def test_cluster_managed_server_is_rejected_while_unreachable(tmp_path: Path) -> None:
    run = write_run(Home(tmp_path))
    run.save("plan.json", cluster_plan("cpu-tiny", *CASES["cpu-tiny"]).to_dict())
    with pytest.raises(UsageError, match="the cluster restarts"):
        recovery.require_watchable(Home(tmp_path), ["owl"])


def test_stop_on_full_disk_prevents_watch_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk prevents a new exit record, so the mark of a restart is changed in place."""
    home = Home(tmp_path)

    def disk_full(*_: object) -> None:
        raise HostError("No space left on device")

    run = write_run(home, by_watch=True)
    assert snapshot(home, run, RUNNING).wanted
    monkeypatch.setattr(RunDir, "save_state", disk_full)
    record_exit(run, STOPPED_FOR_RESTART)
    assert snapshot(home, run, None).wanted
    record_exit(run, "`deploy down`")
    assert not snapshot(home, run, None).wanted
