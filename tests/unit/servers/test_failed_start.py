"""Failed starts: the server is stopped unless it is to be kept, and the error of the start is raised."""

import errno
import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import DeployError, HostError, Interrupted, NotReadyError
from orchestrator.core.paths import Home
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.core.signals import TERMINATION_SIGNALS, defer_signals
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import PreparedRun, ServerState, Status, Unit
from orchestrator.servers.servers import Servers
from orchestrator.servers.start import launch, up, verify
from orchestrator.verify.report import SmokeReport


class Recording:
    """A runtime that starts no process and records its calls."""

    def __init__(self, *, flapping: bool = False, stops: bool = True) -> None:
        self.servers: list[Unit] = []
        self.calls: list[str] = []
        self.flapping = flapping  # every call but `stop` fails
        self.stops = stops

    def start(self, *_: object, name: str, run_dir: Path, **__: object) -> Unit:
        self.servers = [
            Unit(
                runtime="process",
                name=name,
                profile="cpu-tiny",
                plan_digest="d",
                url="http://127.0.0.1:1",
                run_dir=str(run_dir),
                runtime_id="1",
                state=ServerState(status=Status.RUNNING),
            )
        ]
        return self.servers[0]

    def find(self, _name: str | None = None) -> tuple[Unit, ...]:
        return tuple(self.servers)

    def state(self, _handle: Unit) -> ServerState:
        if self.flapping:
            raise HostError("the daemon does not answer")
        status = Status.RUNNING if self.servers else Status.EXITED
        return ServerState(status=status, exit_code=None, restarts=0, started_at=None, detail="")

    def logs(self, _handle: Unit, *, follow: bool) -> Iterator[str]:
        assert not follow
        self.calls.append("logs")
        if self.flapping:
            raise HostError("the daemon does not answer")
        yield "a line"

    def stop(self, _handle: Unit, *, grace: float) -> None:
        assert grace == 0
        self.calls.append("stop")
        if not self.stops:
            raise HostError("the daemon does not answer")
        self.servers = []


def request_of(*overrides: str, keep: bool = False) -> up.UpRequest:
    """Return an `up` request for the CPU profile."""
    return up.UpRequest(
        profile="cpu-tiny",
        name=None,
        overrides=overrides,
        host=None,
        image=None,
        replace=False,
        keep_failed=keep,
        stage=True,
        allow_untuned=False,
        strict_kernels=False,
        timeout=None,
    )


def start(*, keep: bool) -> launch.StartSpec:
    artifacts = render_artifacts(load("cpu-tiny").plan)
    return launch.StartSpec(name="tiny", request=request_of(keep=keep), artifacts=artifacts, records={}, key=None)


def fail_wait(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(launch, "wait_for_server", fail)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("failure", "error"),
    [(NotReadyError("no"), DeployError), (KeyboardInterrupt(), DeployError), (OSError(28, "full"), OSError)],
)
def test_failed_start_leaves_no_server_unless_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: BaseException, error: type[Exception], keep: bool
) -> None:
    fail_wait(monkeypatch, failure)
    runtime = Recording()
    with pytest.raises(error):
        launch.start_server(start(keep=keep), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert bool(runtime.servers) == keep


@pytest.mark.parametrize(
    ("stops", "hint"), [(True, "`tiny` was stopped; nothing is left running"), (False, "stop with `deploy down tiny`")]
)
def test_ctrl_c_reports_remaining_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], stops: bool, hint: str
) -> None:
    fail_wait(monkeypatch, KeyboardInterrupt())
    servers = Servers(Home(tmp_path), {"process": Recording(stops=stops)})  # type: ignore[dict-item]
    with pytest.raises(Interrupted) as caught:
        launch.start_server(start(keep=False), servers)
    assert hint in (caught.value.hint or capsys.readouterr().err)


def test_failed_server_is_stopped_even_without_diagnosis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fail_wait(monkeypatch, NotReadyError("the server exited"))
    runtime = Recording(flapping=True)
    with pytest.raises(NotReadyError, match="the server exited") as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert runtime.servers == []
    assert runtime.calls == ["stop", "logs"]
    assert "the daemon does not answer" in str(caught.value.details)


@pytest.mark.parametrize("failure", [NotReadyError("the server exited"), OSError(28, "No space left on device")])
def test_start_error_is_raised_when_stop_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    fail_wait(monkeypatch, failure)
    runtime = Recording(flapping=True, stops=False)
    with pytest.raises(type(failure)) as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert caught.value is failure
    stderr = capsys.readouterr().err
    assert "warning: `tiny` may still run: the daemon does not answer" in stderr
    assert "hint: `deploy down tiny` stops it" in stderr


def test_unreadable_log_does_not_hide_start_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Unreadable(Recording):
        def logs(self, _handle: Unit, *, follow: bool) -> Iterator[str]:
            assert not follow
            raise PermissionError(13, "Permission denied")

    fail_wait(monkeypatch, NotReadyError("the server exited"))
    with pytest.raises(NotReadyError, match="the server exited") as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": Unreadable()}))  # type: ignore[dict-item]
    assert "cannot read the log" in caught.value.details


def test_interrupt_during_runtime_start_leaves_no_server(tmp_path: Path) -> None:
    class InterruptedStart(Recording):
        def start(self, *_: object, **__: object) -> Unit:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": InterruptedStart()}))  # type: ignore[dict-item]
    assert str(caught.value) == "interrupted; no server was started"
    assert caught.value.hint == "nothing is left running"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), HostError("GPU 4 still holds 41 %")])
def test_failed_replacement_hints_at_recovery_command(tmp_path: Path, failure: BaseException) -> None:
    """Ctrl-C during the VRAM release of the old server once lost the command that restarts it."""
    runtime = Recording()
    runtime.start(name="tiny", run_dir=tmp_path)
    servers = Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]
    open_run(Home(tmp_path), "tiny", load("cpu-tiny").plan).save(
        "request.json", {"version": RECORD_VERSION, "command": "deploy up --profile old"}
    )
    with pytest.raises(DeployError) as caught, up._recovery_hint(servers, "tiny"):
        raise failure
    assert caught.value.hint.endswith("restart it: deploy up --profile old")
    empty = Servers(Home(tmp_path), {"process": Recording()})  # type: ignore[dict-item]
    with pytest.raises(DeployError) as caught, up._recovery_hint(empty, "tiny", "`deploy restart tiny`"):
        raise failure
    assert caught.value.hint.endswith("restart it: `deploy restart tiny`")


def test_full_disk_is_detected_before_old_server_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runtime, artifacts = Recording(), render_artifacts(load("cpu-tiny").plan)
    runtime.start(name="tiny", run_dir=tmp_path)
    prepared = PreparedRun(artifacts=artifacts, records={})
    servers = Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]
    monkeypatch.setattr(up, "open_servers", lambda *_: nullcontext(servers))
    monkeypatch.setattr(up, "prepare_start", lambda *_: prepared)
    monkeypatch.setattr(up, "require_host", lambda *_, **__: None)
    monkeypatch.setattr("orchestrator.runs.run_dir.atomic_write", full_disk)
    with pytest.raises(HostError, match="No space left on device") as caught:
        up.up(replace(request_of(), name="tiny", replace=True), Home(tmp_path))
    assert runtime.calls == []
    assert "the old server is stopped" not in caught.value.hint
    assert [path.name for path in tmp_path.glob("runs/tiny/*")] == [".lock"]


def full_disk(path: Path, *_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_smoke_report_is_returned_when_saving_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime, plan, run_dir = Recording(), load("cpu-tiny").plan, tmp_path / "runs/tiny/1"
    run_dir.mkdir(parents=True)
    runtime.start(name="tiny", run_dir=run_dir)
    (run_dir / "plan.json").write_text(json.dumps(plan.to_dict()))
    report = SmokeReport(url="http://127.0.0.1:1", served_name="tiny", checks=())
    monkeypatch.setattr(verify, "exited_processes", lambda *_: "")
    monkeypatch.setattr(verify, "run_smoke_test", lambda *_, **__: report)
    monkeypatch.setattr("orchestrator.runs.run_dir.atomic_write_all", full_disk)
    servers = Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]
    assert verify.smoke_server(servers, "tiny", strict_kernels=False) is report
    assert "warning: cannot save all results: cannot write below" in capsys.readouterr().err


def test_second_ctrl_c_during_cleanup_leaves_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt_again(*arguments: object, **options: object) -> BaseException:
        signal.raise_signal(signal.SIGINT)
        return stop_and_explain(*arguments, **options)  # type: ignore[arg-type]

    fail_wait(monkeypatch, KeyboardInterrupt())
    stop_and_explain = launch._stop_and_explain
    monkeypatch.setattr(launch, "_stop_and_explain", interrupt_again)
    runtime, before = Recording(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.calls == ["stop"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_verified_start_is_not_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit code 130 means that no server is left, so a verified start must not end with it."""

    def interrupt(*_: object) -> None:
        pytest.fail("the start was interrupted")

    monkeypatch.setattr(launch, "wait_for_server", lambda *_, **__: 1.0)
    monkeypatch.setattr(launch, "run_smoke_test", lambda *_, **__: SmokeReport(url="", served_name="tiny", checks=()))
    monkeypatch.setattr(launch, "kernel_gate", lambda *_, **__: None)
    runtime, before = Recording(), {number: signal.signal(number, interrupt) for number in TERMINATION_SIGNALS}
    try:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
        for number in TERMINATION_SIGNALS:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(runtime.servers) == 1


def test_ctrl_c_stops_log_reading_after_server_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Talkative(Recording):
        def logs(self, _handle: Unit, *, follow: bool) -> Iterator[str]:
            assert not follow
            self.calls.append("logs")
            signal.raise_signal(signal.SIGINT)
            yield from iter(lambda: "a line", "")

    fail_wait(monkeypatch, NotReadyError("the server exited"))
    runtime, before = Talkative(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(NotReadyError) as caught:
            launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.calls == ["stop", "logs"]
    assert "interrupted" in caught.value.details


def test_server_started_during_interrupt_is_stopped(tmp_path: Path) -> None:
    class Interrupted(Recording):
        def start(self, *arguments: object, name: str, run_dir: Path, **options: object) -> Unit:
            super().start(*arguments, name=name, run_dir=run_dir, **options)
            raise KeyboardInterrupt

    runtime = Interrupted()
    with pytest.raises(DeployError):
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert runtime.servers == []


def raise_in_deferred_block(number: signal.Signals, completed: list[str]) -> None:
    with defer_signals():
        signal.raise_signal(number)
        completed.append("the rest of the block")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_termination_signals_are_deferred_until_block_ends(number: signal.Signals) -> None:
    """SIGHUP of a closed terminal once ended a start between a process and its record."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, completed = signal.signal(number, interrupt), list[str]()
    try:
        with pytest.raises(KeyboardInterrupt):
            raise_in_deferred_block(number, completed)
    finally:
        signal.signal(number, before)
    assert completed


def test_recorded_command_repeats_the_request() -> None:
    """The command is recorded and shown as the way to restart the server."""
    request = up.UpRequest(
        profile="./my profile.yaml",
        name=None,
        overrides=("layout.tp=4",),
        host="ssh://node",
        image="ghcr.io/me/sglang:1",
        replace=True,
        keep_failed=True,
        stage=True,
        allow_untuned=False,
        strict_kernels=True,
        timeout=90.0,
    )
    assert request.command("tiny") == (
        "deploy up --profile './my profile.yaml' --name tiny --set layout.tp=4 --host ssh://node"
        " --image ghcr.io/me/sglang:1 --strict-kernels --timeout 90"
    )


def test_unwritable_run_directory_is_a_host_error(tmp_path: Path) -> None:
    """A plain OSError would lose the recovery command of the replaced server."""
    (tmp_path / "runs").write_text("a file in its place")
    with pytest.raises(HostError, match="cannot write below"):
        open_run(Home(tmp_path), "tiny", load("cpu-tiny").plan)


@pytest.mark.parametrize(
    ("overrides", "is_reported"),
    [
        (("server.host=0.0.0.0", "server.allow_unauthenticated=true"), True),
        (("server.host=::", "server.allow_unauthenticated=true"), True),
        (("server.host=0.0.0.0", "server.api_key_env=KEY"), False),
        (("server.host=::1",), False),
        ((), False),
    ],
)
def test_public_server_without_api_key_warns(
    overrides: tuple[str, ...],
    is_reported: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object) -> None:
        raise HostError("stop here")

    monkeypatch.setenv("KEY", "k" * 20)
    monkeypatch.setattr("orchestrator.servers.start.up.open_servers", stop)
    with pytest.raises(HostError, match="stop here"):
        up.up(request_of(*overrides), Home(tmp_path))
    assert ("without an API key; anyone who can reach it can use it" in capsys.readouterr().err) is is_reported
