"""`up` waits until the ranks of a pod have answered sampled requests; before, the cluster does not route to it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import NotReadyError
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import ServerState, Status, Unit
from orchestrator.servers.group import Server
from orchestrator.servers.start import verify
from orchestrator.servers.status import startup_seconds

RUNNING = ServerState(status=Status.RUNNING)
RESTARTED = ServerState(status=Status.RUNNING, restarts=1, detail="restarted 1 times; it exited with code 137")


@dataclass
class Cluster:
    """A runtime with the readiness and the state of the pod at each poll; the last ones repeat."""

    ready: list[bool]
    states: list[ServerState] = field(default_factory=lambda: [RUNNING])

    def is_ready(self, _: Unit) -> bool:
        return self.ready.pop(0) if len(self.ready) > 1 else self.ready[0]

    def state(self, _: Unit) -> ServerState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def tail(self, _: Unit) -> Any:  # noqa: ANN401 - it is not read
        return lambda: ()

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        return ()


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unit:
    """Return a server that is healthy after 10 s; waiting takes no real time."""
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    clock: Any = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    polls = verify.poll_until
    monkeypatch.setattr(verify, "time", clock)
    monkeypatch.setattr(verify, "wait_until_ready", lambda *_, **__: 10.0)
    monkeypatch.setattr(
        verify, "poll_until", lambda *item, **more: polls(*item, **more, clock=clock.monotonic, sleep=advance)
    )
    fields = {"profile": "cpu-tiny", "plan_digest": "", "url": "", "runtime_id": "one"}
    return Unit(runtime="kubernetes", name="owl", run_dir=str(tmp_path), **fields)


def wait(handle: Unit, cluster: Any, timeout: float | None = None) -> float:  # noqa: ANN401 - see `Cluster`
    return verify.wait_for_server(Server.of(handle, cluster), plan=plan_of("cpu-tiny"), key=None, timeout=timeout)


def test_slow_first_sample_is_a_startup_stage(handle: Unit) -> None:
    assert wait(handle, Cluster([False] * 200 + [True])) == 110.0
    assert startup_seconds(RunDir(Path(handle.run_dir))) == {"first sampled request": 100.0}


def test_ready_server_needs_no_further_wait(handle: Unit) -> None:
    assert wait(handle, Cluster([True])) == 10.0


@pytest.mark.parametrize(("timeout", "waited"), [(None, "720"), (70.0, "60")])
def test_missing_first_sample_fails_with_hint(timeout: float | None, waited: str, handle: Unit) -> None:
    with pytest.raises(NotReadyError, match=f"not answered its first sampled request after {waited} s") as raised:
        wait(handle, Cluster([False]), timeout)
    assert "`deploy logs owl` shows what its ranks do" in str(raised.value.hint)


def test_restart_during_first_sample_fails(handle: Unit) -> None:
    with pytest.raises(NotReadyError, match="exited during its first sampled request: restarted 1 times"):
        wait(handle, Cluster([False, True], [RUNNING, RESTARTED]))
