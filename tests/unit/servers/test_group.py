"""Units of one server: the order in which they stop, and their merged logs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import HostRef, PreparedRun, Runtime, ServerState, Status, Unit
from orchestrator.servers.group import servers_of

BLANK = Unit(runtime="noted", name="pair", profile="p", plan_digest="", url="", run_dir="", runtime_id="")


class RecordingRuntime(Runtime):
    """A runtime that records its calls; its units stop on request, except the unit `hangs`."""

    name = "noted"

    def __init__(self, home: Home, *folders: str, hangs: str = "") -> None:
        super().__init__(home)
        self.hangs = hangs
        self.stopped: set[str] = set()
        self.calls: list[str] = []
        self.units = [replace(BLANK, run_dir=str(home.root / folder), runtime_id=folder) for folder in folders]

    @classmethod
    def render(cls, plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
        raise NotImplementedError

    @classmethod
    def prepare(cls, artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:
        raise NotImplementedError

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        raise NotImplementedError

    def find(self, _name: str | None = None) -> tuple[Unit, ...]:
        return tuple(replace(unit, state=self.state(unit)) for unit in self.units)

    def state(self, unit: Unit) -> ServerState:
        return ServerState(status=Status.NOT_FOUND if unit.runtime_id in self.stopped else Status.RUNNING)

    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:  # noqa: ARG002 - a log of one line
        yield f"of {unit.runtime_id}"

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        return lambda: iter([f"new of {unit.runtime_id}"])

    def request_stop(self, unit: Unit) -> None:
        self.calls.append(f"ask {unit.runtime_id}")
        if unit.runtime_id != self.hangs:
            self.stopped.add(unit.runtime_id)

    def stop(self, unit: Unit, *, grace: float) -> None:  # noqa: ARG002 - it ends at once
        self.calls.append(f"stop {unit.runtime_id}")
        if unit.runtime_id == self.hangs:
            raise HostError("it does not end")
        self.stopped.add(unit.runtime_id)


@pytest.fixture
def pair(tmp_path: Path) -> RecordingRuntime:
    return RecordingRuntime(Home(tmp_path), "run/replica-2", "run", "run/replica-1")


def test_gateway_and_replicas_form_one_server(pair: RecordingRuntime) -> None:
    [server] = servers_of(pair, pair.find("pair"))
    assert [(unit.role, unit.runtime_id) for unit in server.units] == [
        (Role.GATEWAY, "run"),
        (Role.SERVER, "run/replica-1"),
        (Role.SERVER, "run/replica-2"),
    ]
    assert {unit.state.status for unit in server.units} == {Status.RUNNING}


def test_gateway_stops_before_replicas(pair: RecordingRuntime) -> None:
    [server] = servers_of(pair, pair.find("pair"))
    server.stop(grace=5)
    assert pair.calls[0] == "stop run"
    assert pair.calls[1:4] == ["ask run/replica-2", "ask run/replica-1", "ask run"]
    assert set(pair.calls[4:]) == {"stop run/replica-1", "stop run/replica-2", "stop run"}
    assert server.current_state().status is Status.NOT_FOUND


@pytest.mark.parametrize("hangs", ["run", "run/replica-1", "run/replica-2"])
def test_unit_failing_to_stop_does_not_block_others(tmp_path: Path, hangs: str) -> None:
    pair = RecordingRuntime(Home(tmp_path), "run", "run/replica-1", "run/replica-2", hangs=hangs)
    [server] = servers_of(pair, pair.find("pair"))
    with pytest.raises(HostError, match="it does not end"):
        server.stop(grace=0)
    assert pair.stopped == {"run", "run/replica-1", "run/replica-2"} - {hangs}
    assert {f"stop {unit.runtime_id}" for unit in pair.units} <= set(pair.calls), "`stop` saves the log of each unit"


def test_replicas_without_gateway_are_exited_and_stopped(tmp_path: Path) -> None:
    incomplete = RecordingRuntime(Home(tmp_path), "run/replica-1", "run/replica-2")
    [server] = servers_of(incomplete, incomplete.find("pair"))
    assert server.state == server.current_state()
    assert (server.state.status, server.state.detail) == (Status.EXITED, "the gateway was not started")
    server.stop(grace=0)
    assert incomplete.stopped == {"run/replica-1", "run/replica-2"}


def test_logs_of_units_are_merged_with_file_names(pair: RecordingRuntime) -> None:
    [server] = servers_of(pair, pair.find("pair"))
    assert list(server.logs(follow=False)) == [
        "==> server.log <==",
        "of run",
        "==> replica-1/server.log <==",
        "of run/replica-1",
        "==> replica-2/server.log <==",
        "of run/replica-2",
    ]
    assert list(server.tail()()) == ["new of run", "new of run/replica-1", "new of run/replica-2"]


class HalfUnreachable(RecordingRuntime):
    """A server on two hosts, the second of which is unreachable."""

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        return lambda: self.logs(unit, follow=True)

    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:
        self._require_first(unit)
        yield from super().logs(unit, follow=follow)

    def state(self, unit: Unit) -> ServerState:
        self._require_first(unit)
        return super().state(unit)

    def _require_first(self, unit: Unit) -> None:
        if unit.run_dir.endswith("rank-1"):
            raise HostError("ssh://b does not answer")


def test_unreachable_rank_log_warns_once_and_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run/rank-1").mkdir(parents=True)
    runtime = HalfUnreachable(Home(tmp_path), "run")
    [server] = servers_of(runtime, runtime.find("pair"))
    tail = server.tail()
    assert [*tail(), *tail()] == ["of run", "of run"]
    assert capsys.readouterr().err == "warning: cannot read the log of rank 1: ssh://b does not answer\n"
    logged = server.logs(follow=True)
    assert [next(logged) for _ in range(3)] == ["==> server.log <==", "of run", "==> rank-1/server.log <=="]
    assert next(logged) == "==> server.log <=="  # rank 0 runs, and its log is followed
    runtime.stopped.add("run")
    assert list(logged) == ["of run"]
    assert capsys.readouterr().err.count("warning: ") == 1
