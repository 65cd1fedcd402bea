"""`deploy down`: a failure to stop one server does not affect the others, and every failure is reported."""

from dataclasses import replace
from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import DeployError, HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import HostRef, ServerState, Status, Unit
from orchestrator.servers import down as command
from orchestrator.servers.servers import Servers

FAILURES = {
    "b": HostError("the record `b` cannot be read", hint="look"),
    "c": DeployError("do not end"),
    "d": OSError(5, "I/O"),
}


def handle(name: str, run_dir: Path) -> Unit:
    run_dir.mkdir(parents=True)
    fields = {"profile": "", "plan_digest": "", "url": "", "runtime_id": "1"}
    return Unit(runtime="process", name=name, run_dir=str(run_dir), **fields)


class Stopping:
    """A runtime of servers, some of which cannot be stopped."""

    drains_on_stop = False

    def __init__(self, home: Path, *names: str) -> None:
        self.handles = [handle(name, home / "runs" / name / str(number)) for number, name in enumerate(names)]
        self.stopped: list[str] = []

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        return tuple(handle for handle in self.handles if name in {None, handle.name})

    def state(self, _handle: Unit) -> ServerState:
        return ServerState(status=Status.RUNNING, exit_code=None, restarts=0, started_at=None, detail="")

    def stop(self, handle: Unit, *, grace: float) -> None:
        assert grace > 0
        if handle.name in FAILURES:
            raise FAILURES[handle.name]
        self.stopped.append(Path(handle.run_dir).name)


def servers_of(runtime: Stopping, tmp_path: Path) -> Servers:
    return Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]


def test_down_all_continues_after_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runtime = Stopping(tmp_path, "a", "b", "c", "d", "e")
    stopped: list[str] = []

    with pytest.raises(HostError) as caught:
        command.down_all(servers_of(runtime, tmp_path), ended=stopped.append)

    assert stopped == ["a", "e"]
    assert runtime.stopped == ["0", "4"]
    assert caught.value.message == "cannot stop 3 of 5 servers"
    assert [problem.message.partition(":")[0] for problem in caught.value.problems] == ["`b`", "`c`", "`d`"]
    assert caught.value.problems[0].hint == "look"
    names = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert names == ["stopping `a`", "`a` is stopped", *(f"stopping `{name}`" for name in "bcde"), "`e` is stopped"]


def test_unreachable_runtime_is_reported_for_explicit_host(tmp_path: Path) -> None:
    class Unreachable(Stopping):
        def find(self, _name: str | None = None) -> tuple[Unit, ...]:
            raise HostError("the daemon does not answer")

    servers = replace(servers_of(Unreachable(tmp_path), tmp_path), explicit_hosts=frozenset({"process"}))

    with pytest.raises(HostError) as caught:
        command.down_all(servers)

    assert [problem.message for problem in caught.value.problems] == [
        "cannot query process: the daemon does not answer"
    ]


def test_unused_unreachable_runtime_is_not_reported(tmp_path: Path) -> None:
    """A pod has neither a Docker daemon nor servers in Docker."""

    class Unreachable(Stopping):
        def find(self, _name: str | None = None) -> tuple[Unit, ...]:
            raise HostError("the daemon does not answer")

    servers = servers_of(Unreachable(tmp_path), tmp_path)

    assert servers.find() == ()
    assert servers.unreachable == {}


def test_down_stops_every_run_of_a_name(tmp_path: Path) -> None:
    runtime = Stopping(tmp_path, "a", "a")

    command.down(servers_of(runtime, tmp_path), "a")

    assert runtime.stopped == ["0", "1"]


def test_down_all_reports_servers_of_other_homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`down --all` once stopped the servers of another user of the same Docker daemon."""
    runtime = Stopping(tmp_path / "mine", "mine", "shared")
    runtime.handles += [handle("theirs", tmp_path / "theirs/runs/theirs/2"), handle("shared", tmp_path / "mine/../3")]
    runtime.handles.append(replace(runtime.handles[0], name="gone", run_dir="/mine/runs/gone/4"))

    command.down_all(servers_of(runtime, tmp_path / "mine"))

    assert runtime.stopped == ["0", "1"]
    stderr = capsys.readouterr().err
    assert "`theirs` was started from another home and is still running: `deploy down theirs` stops it" in stderr
    assert "`gone` was started from another home" in stderr


def test_down_all_reports_that_no_server_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.down_all(servers_of(Stopping(tmp_path), tmp_path))
    assert capsys.readouterr().err == "no server of this home is running\n"


def test_all_homes_option_stops_servers_of_other_homes(tmp_path: Path) -> None:
    runtime = Stopping(tmp_path / "mine", "mine")
    runtime.handles.append(handle("theirs", tmp_path / "theirs/runs/theirs/1"))

    command.down_all(servers_of(runtime, tmp_path / "mine"), all_homes=True)

    assert runtime.stopped == ["0", "1"]


def test_down_waits_for_hosts_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, waited = Stopping(tmp_path, "a"), list[HostRef]()
    runtime.handles = [replace(runtime.handles[0], rank_hosts=("ssh://b",))]
    monkeypatch.setattr(command, "read_plan", lambda _: plan_of("mi355x-tp8", "layout.tp=16", "layout.nodes=2"))
    monkeypatch.setattr(command, "wait_until_released", lambda _, host_ref: waited.append(host_ref))
    command.down(replace(servers_of(runtime, tmp_path), host="ssh://a"), "a")
    assert [node.remote for node in waited[0].nodes] == ["ssh://a", "ssh://b"]
