"""Requests of a stopping server: waiting, aborting after a timeout, and counting."""

import ast
import json
import runpy
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
from plan_samples import plan_of

from orchestrator.core.paths import Home
from orchestrator.engine import drain as program
from orchestrator.engine import first_sample, liveness
from orchestrator.runtimes.base import Runtime, ServerState, Status, Unit
from orchestrator.servers import drain as module
from orchestrator.servers.drain import Drain, drain_and_stop
from orchestrator.servers.group import Server
from orchestrator.servers.servers import Servers

SERVER = Server(
    backend=cast("Runtime", None),
    runtime="noted",
    name="owl",
    profile="p",
    plan_digest="",
    url="http://127.0.0.1:1",
    run_dir="/runs/owl/1",
    runtime_id="1",
)


@dataclass
class Engine:
    """A server with running requests, which a test completes or which are aborted."""

    status: ClassVar = Status.RUNNING
    path: str = "/get_load"
    running: int = 0
    status_code: int = 200
    drains_on_stop: bool = False
    calls: int = 0
    aborted: list[int] = field(default_factory=list)

    def state(self, _: Unit) -> ServerState:
        """Return the state that the runtime reports."""
        return ServerState(status=self.status)

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        self.calls += 1
        if method == "GET":
            return (self.status_code, json.dumps(self.load()).encode()) if path == self.path else (404, b"")
        assert (path, json.loads(body or "")) == ("/abort_request", {"abort_all": True})
        self.aborted.append(self.running)
        self.running = 0
        return 200, b""

    def load(self) -> object:
        if self.path == "/get_load":
            return [{"dp_rank": rank, "num_reqs": count} for rank, count in enumerate((self.running, 0))]
        return {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": self.running}]}


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(program.ServerRequests, "_ask", lambda _, *words: engine.ask(*words))
    for program_ in (module, program):
        monkeypatch.setattr(program_, "_POLL", 0.01)
    return engine


def run_drain(engine: Engine, server: Server = SERVER, *, seconds: float, ends: int = 0) -> float:
    """Drain a server while `ends` of its requests complete, and return the grace of its stop."""
    with Drain(replace(server, backend=engine), seconds=seconds) as drain:  # type: ignore[arg-type]  # an incomplete runtime
        engine.running -= ends
        drain.wait()
        return drain.grace


@pytest.mark.parametrize("path", program.LOADS)
def test_completed_requests_are_counted_without_aborts(
    engine: Engine, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.path = path
    engine.running = 3
    grace = run_drain(engine, replace(SERVER, run_dir="/runs/owl/1/replica-2"), seconds=60, ends=3)
    assert 60 < grace < 60 + module._EXIT
    assert engine.aborted == []
    assert capsys.readouterr().err == "drained replica 2: 3 requests ended\n"


def test_remaining_requests_are_aborted_after_timeout(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.running = 4
    grace = run_drain(engine, seconds=0.3, ends=3)
    assert engine.aborted == [1]
    assert grace == module._EXIT
    assert capsys.readouterr().err == "drained `owl`: 3 requests ended, 1 aborted after 0.3 s\n"


def test_drained_requests_are_counted_per_role(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.running = 2
    both = tuple(replace(SERVER, backend=engine, run_dir=f"/runs/owl/1/{role}-1") for role in ("prefill", "decode"))
    run_drain(engine, replace(SERVER, replicas=both), seconds=60, ends=2)
    assert capsys.readouterr().err == "drained prefill 1: 2 requests ended\ndrained decode 1: 2 requests ended\n"


def test_zero_drain_time_aborts_immediately(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.running = 2
    assert run_drain(engine, seconds=0) == 0
    assert engine.aborted == [2]
    assert capsys.readouterr().err == "drained `owl`: 0 requests ended, 2 aborted after 0 s\n"


def test_zero_drain_time_aborts_only_after_cordon(engine: Engine) -> None:
    """A rolling update cordons the replica first; otherwise new requests would arrive in between."""
    engine.running = 2
    with Drain(replace(SERVER, backend=engine), seconds=0) as drain:  # type: ignore[arg-type]  # as above
        assert engine.aborted == []
        engine.running = 3
        drain.wait()
        assert engine.aborted == [3]


def test_missing_api_key_names_its_variable(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(plan_of("cpu-tiny", "server.api_key_env=OWL_KEY").to_json())
    engine.status_code = 401
    monkeypatch.delenv("OWL_KEY", raising=False)
    run_drain(engine, replace(SERVER, run_dir=str(tmp_path)), seconds=1)
    message = "note: cannot count the requests of `owl`: `OWL_KEY` is not set; export it to count them\n"
    assert capsys.readouterr().err == message


def test_drain_time_is_limited_by_termination_grace(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod's hook uses the grace of the running plan; requests that it aborted once counted as ended."""
    (tmp_path / "plan.json").write_text(plan_of("cpu-tiny", "timeouts.termination_grace=7").to_json())
    server, graces = replace(SERVER, backend=cast("Runtime", engine), run_dir=str(tmp_path)), list[float]()
    monkeypatch.setattr(module, "stop_server", lambda *_, grace, **__: graces.append(grace))
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: 0.0)
    )  # independent of the load of the machine
    servers = Servers(Home(tmp_path), {"noted": cast("Runtime", engine)})
    for engine.drains_on_stop, seconds in ((True, 60.0), (True, 3.0), (False, 60.0)):
        drain_and_stop(servers, replace(server), seconds=seconds, reason="stopped")
    assert [grace - module._EXIT for grace in graces] == [7, 3, 60]
    message = "note: `owl` aborts its requests after 7 s, `timeouts.termination_grace` of its plan\n"
    assert capsys.readouterr().err == message


def test_drain_also_waits_for_new_requests(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """A server without a gateway accepts new requests even while it stops."""
    engine.running = 1
    with Drain(replace(SERVER, backend=engine), seconds=60):  # type: ignore[arg-type]  # as above
        for engine.running in (2, 0):
            calls = engine.calls
            while engine.calls < calls + 2:
                time.sleep(0.01)
    assert capsys.readouterr().err == "drained `owl`: 2 requests ended\n"


def test_idle_server_drains_immediately_and_silently(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    run_drain(engine, seconds=60)
    assert time.monotonic() - started < 30
    assert (engine.aborted, capsys.readouterr().err) == ([], "")


def test_exited_server_is_not_queried(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Another server may use its port by now."""
    engine.running = 5
    engine.state = lambda _: ServerState(status=Status.EXITED)  # type: ignore[method-assign]
    assert run_drain(engine, seconds=0) == 0
    assert (engine.aborted, capsys.readouterr().err) == ([], "")


def test_server_without_request_count_gets_full_drain_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for engine.status_code, reason in (
        (401, "the server rejects the API key"),
        (500, "the load request returned HTTP 404"),
    ):
        assert run_drain(engine, seconds=60) <= 60
        assert capsys.readouterr().err == f"note: cannot count the requests of `owl`: {reason}\n"
    monkeypatch.setattr(engine, "ask", reject)
    assert run_drain(engine, seconds=60) <= 60
    assert capsys.readouterr().err == ""


def reject(*_: object) -> None:
    raise ConnectionRefusedError


def test_pod_hook_drains_and_logs_result(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(program, "_log", lines.append)
    engine.running = 2
    program.main("1", "0.2")
    program.main("1", "60")
    assert (engine.aborted, lines) == ([2], ["drained: 0 requests ended, 2 aborted after 0.2 s"])
    monkeypatch.setattr(engine, "ask", reject)
    program.main("1", "60")
    assert len(lines) == 1


def test_pod_programs_run_standalone_on_python_3_10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container they have only the standard library and the other file of the ConfigMap."""
    for name in (program, first_sample, liveness):
        text = Path(str(name.__file__)).read_text(encoding="utf-8")
        ast.parse(text, feature_version=(3, 10))
        (tmp_path / Path(str(name.__file__)).name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("drain.py", "first_sample.py"):
        names = runpy.run_path(str(tmp_path / name))
        del sys.modules["liveness"]
        assert names["key_in"].__code__.co_filename == str(tmp_path / "liveness.py")
