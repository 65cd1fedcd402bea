"""Replicas that a rolling update adds and removes, and failed or interrupted updates."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import DeployError, HostError, Interrupted, SmokeError, StartError
from orchestrator.core.paths import Home
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import ServerState, Status, Unit
from orchestrator.servers.group import Server, join_replicas
from orchestrator.servers.rollout import update
from orchestrator.servers.servers import replicas_on_other_plan
from orchestrator.servers.watch.recovery import is_wanted
from orchestrator.verify.report import CheckResult, SmokeReport, Verdict


def planned(replicas: int) -> Plan:
    return plan_of("cpu-tiny", f"replicas={replicas}")


@dataclass
class Rollout:
    """A fake gateway and runtime, which record the calls of an update."""

    home: Home
    calls: list[str] = field(default_factory=list)
    routed: bool = True
    during: dict[str, Callable[[], object]] = field(default_factory=dict)  # functions that run in a call
    stopped: list[str] = field(default_factory=list)
    verdict: Verdict = Verdict.PASSED
    gateway: Server | None = None

    def replica(self, number: int, *, of: Plan, run: str = "1") -> Server:
        folder, own = self.home.runs / "pair" / run / f"replica-{number}", replica_plans(of)[number - 1]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(own.to_json())
        (folder.parent / "plan.json").write_text(of.to_json())
        return self.server(folder, own)

    def server(self, folder: Path, plan: Plan) -> Server:
        return Server(
            backend=self,  # type: ignore[arg-type]  # an incomplete runtime
            runtime="process",
            name="pair",
            profile="cpu-tiny",
            plan_digest=plan.digest,
            url=plan.server.url,
            run_dir=str(folder),
            runtime_id=folder.name,
        )

    def start(self, plan: Plan, *replicas: Server, max_replicas: int | None = None) -> object:
        """Update the replicas to a plan."""
        self.gateway = self.server(self.home.runs / "pair/1", plan)
        replicas_of = [SimpleNamespace(plan=replica_plan) for replica_plan in replica_plans(plan)]
        request = SimpleNamespace(drain=0, min_gsm8k=None, max_replicas=max_replicas, command=lambda _: "deploy up")
        start: Any = SimpleNamespace(
            name="pair",
            artifacts=SimpleNamespace(plan=plan, replicas=replicas_of),
            key=None,
            request=request,
            on_verified=lambda: None,
        )
        servers: Any = SimpleNamespace(home=self.home, open=lambda _: self.gateway)
        unused: Any = None
        return update.rolling_update(start, servers, join_replicas(self.gateway, replicas), unused, unused)

    # the runtime and the workers of the gateway
    url = "http://127.0.0.1:9"

    def call(self, words: str) -> None:
        self.calls.append(words)
        self.during.get(words.split(maxsplit=1)[0], lambda: None)()

    def state(self, server: Unit) -> ServerState:
        self.during.get("state", lambda: None)()
        return ServerState(status=Status.NOT_FOUND if server.run_dir in self.stopped else Status.RUNNING)

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        return ()

    def stop(self, server: Unit, *, grace: float) -> None:
        assert grace == 0
        self.call(f"stop {Path(server.run_dir).name}")
        self.stopped.append(server.run_dir)

    def is_routed(self, _url: str, _server: Server) -> bool:
        return self.routed

    def drain(self, url: str, _: Server | None, other_replicas: int) -> None:
        self.call(f"drain {url} {other_replicas}")

    def uncordon(self, url: str, server: Server, other_replicas: int) -> None:
        assert server.run_dir not in self.stopped
        self.call(f"uncordon {url} {other_replicas}")


@pytest.fixture
def signal_allowed() -> Iterator[None]:
    """Let SIGINT interrupt, even in a background job of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rollout:
    rollout = Rollout(Home(tmp_path))

    @contextmanager
    def drained(*_: object, **__: object) -> Iterator[object]:
        yield SimpleNamespace(wait=lambda: None, grace=0.0)

    def opened(*_: object) -> RunDir:
        run = RunDir(tmp_path / "runs/pair/3")
        run.path.mkdir()
        return run

    def started(state: "update._RollingUpdate", number: int, _: object) -> Server:
        return rollout.replica(number, of=state.start.artifacts.plan, run="3")

    def checked(*_: object, **__: object) -> SmokeReport:
        return SmokeReport(url="", served_name="", checks=())

    def last(*_: object) -> list[CheckResult]:
        return [CheckResult(name="gateway", verdict=rollout.verdict, evidence="", seconds=0.0)]

    monkeypatch.setattr(update, "Drain", drained)
    monkeypatch.setattr(update, "open_run_dir", opened)
    monkeypatch.setattr(update, "open_gateway_workers", lambda *_, **__: rollout)
    monkeypatch.setattr(update, "run_smoke_test", checked)
    monkeypatch.setattr(update, "gateway_checks", last)
    monkeypatch.setattr(update, "wait_until_released", lambda *_: None)
    monkeypatch.setattr(update._RollingUpdate, "_start_new", started)
    return rollout


def address(number: int) -> str:
    return replica_plans(planned(4))[number - 1].server.url


def test_interrupted_scale_down_is_continued(rollout: Rollout) -> None:
    """The newest run has the requested plan with two replicas; the third replica has that of the first run."""
    old, new = planned(3), planned(2)
    third = rollout.replica(3, of=old)
    rollout.start(new, rollout.replica(1, of=new, run="2"), rollout.replica(2, of=new, run="2"), third)
    assert rollout.calls == [f"drain {address(3)} 2", "stop replica-3"]
    assert json.loads((Path(third.run_dir) / "exit.json").read_text())["asked"] == "removed"


def test_removed_replicas_are_not_counted(rollout: Rollout) -> None:
    old, new = planned(4), planned(2)
    unchanged = [rollout.replica(number, of=new, run="2") for number in (1, 2)]
    rollout.start(new, *unchanged, *(rollout.replica(number, of=old) for number in (3, 4)))
    assert rollout.calls == [f"drain {address(3)} 3", "stop replica-3", f"drain {address(4)} 2", "stop replica-4"]


def test_failed_check_after_scale_down_keeps_server_wanted(rollout: Rollout) -> None:
    new = planned(2)
    rollout.verdict = Verdict.FAILED
    unchanged = [rollout.replica(number, of=new, run="2") for number in (1, 2)]
    with pytest.raises(SmokeError):
        rollout.start(new, *unchanged, rollout.replica(3, of=planned(3)))
    server = join_replicas(rollout.gateway, unchanged)
    assert (server.run.path.name, is_wanted(server.run, server)) == ("3", True)


def test_failure_before_smoke_test_is_recorded(rollout: Rollout) -> None:
    def fail() -> None:
        raise StartError("cannot drain")

    rollout.during["drain"] = fail
    new = planned(2)
    unchanged = [rollout.replica(number, of=new, run="2") for number in (1, 2)]
    with pytest.raises(StartError):
        rollout.start(new, *unchanged, rollout.replica(3, of=planned(3)))
    assert str(RunDir(rollout.home.runs / "pair/3").read("exit.json")["asked"]).startswith("`up` failed")
    assert rollout.calls[-1] == f"uncordon {address(3)} 2"


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("signal_allowed")
def test_second_interrupt_leaves_no_running_replica_cordoned(rollout: Rollout) -> None:
    routed: list[bool] = []

    def interrupt_again() -> None:
        interrupt()
        routed.append(True)

    rollout.during |= {"drain": interrupt, "uncordon": interrupt_again}
    new = planned(2)
    with pytest.raises(Interrupted):
        rollout.start(new, rollout.replica(1, of=new), rollout.replica(2, of=new), rollout.replica(3, of=planned(3)))
    assert routed == [True]


@pytest.mark.usefixtures("signal_allowed")
def test_interrupted_stop_counts_as_removal(rollout: Rollout) -> None:
    rollout.during["stop"] = interrupt
    new = planned(2)
    with pytest.raises(Interrupted) as caught:
        rollout.start(new, rollout.replica(1, of=new), rollout.replica(2, of=new), rollout.replica(3, of=planned(3)))
    assert "2 of 2 replicas have this plan; `deploy up --replace`" in str(caught.value.hint)
    assert rollout.calls[-1] == "stop replica-3"


def test_unknown_state_does_not_hide_first_error(rollout: Rollout) -> None:
    def unknown() -> None:
        raise HostError("the daemon does not answer")

    def fail() -> None:
        rollout.during["state"] = unknown
        raise StartError("cannot drain")

    rollout.during["drain"] = fail
    new = planned(2)
    with pytest.raises(DeployError, match="cannot drain"):
        rollout.start(new, rollout.replica(1, of=new), rollout.replica(2, of=new), rollout.replica(3, of=planned(3)))


def test_added_replicas_are_reported_one_by_one(rollout: Rollout, capsys: pytest.CaptureFixture[str]) -> None:
    new = planned(4)
    rollout.start(new, *(rollout.replica(number, of=new) for number in (1, 2)), max_replicas=1)
    stderr = capsys.readouterr().err
    assert "replica 3 of 4: starting\n" in stderr
    assert "3 of 4 replicas have this plan, 1 is not started yet" in stderr


def test_replica_exited_during_update_is_down(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StartError("it ended")

    monkeypatch.setattr(update._RollingUpdate, "_start_new", fail)
    new = planned(4)
    with pytest.raises(StartError) as caught:
        rollout.start(new, *(rollout.replica(number, of=new) for number in (1, 2)))
    assert "2 of 4 replicas have this plan, 1 is down, 1 is not started yet" in str(caught.value.hint)


def test_surplus_replica_is_to_be_removed(rollout: Rollout) -> None:
    new, old = planned(2), planned(3)
    other = replace(rollout.replica(2, of=new), plan_digest="another")
    servers = (rollout.replica(1, of=new), other, rollout.replica(3, of=old))
    server = join_replicas(rollout.server(rollout.home.runs / "pair/1", new), servers)
    assert replicas_on_other_plan(server, new) == "replica 2 of 2 has another, replica 3 is to be removed"
