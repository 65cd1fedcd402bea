"""A start that fails, in whatever way: nothing of it stays, unless it is to be looked at."""

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
from orchestrator.runtimes.base import PreparedRun, ServerState, Status
from orchestrator.servers.group import RunningServer
from orchestrator.servers.servers import Servers
from orchestrator.servers.start import launch, up, verify
from orchestrator.verify.report import SmokeReport


class Recording:
    """A runtime that starts nothing and notes what is asked of it."""

    def __init__(self, *, flapping: bool = False, stops: bool = True) -> None:
        self.servers: list[RunningServer] = []
        self.asked: list[str] = []
        self.flapping = flapping  # nothing that is asked of it is answered, but for a stop
        self.stops = stops

    def start(self, *_: object, name: str, run_dir: Path, **__: object) -> RunningServer:
        self.servers = [
            RunningServer(
                runtime="process",
                name=name,
                profile="cpu-tiny",
                plan_digest="d",
                url="http://127.0.0.1:1",
                run_dir=str(run_dir),
                runtime_id="1",
            )
        ]
        return self.servers[0]

    def find(self, _name: str | None = None) -> tuple[RunningServer, ...]:
        return tuple(self.servers)

    def state(self, _handle: RunningServer) -> ServerState:
        if self.flapping:
            raise HostError("the daemon does not answer")
        status = Status.RUNNING if self.servers else Status.EXITED
        return ServerState(status=status, exit_code=None, restarts=0, started_at=None, detail="")

    def logs(self, _handle: RunningServer, *, follow: bool) -> Iterator[str]:
        assert not follow
        self.asked.append("logs")
        if self.flapping:
            raise HostError("the daemon does not answer")
        yield "a line"

    def stop(self, _handle: RunningServer, *, grace: float) -> None:
        assert grace == 0
        self.asked.append("stop")
        if not self.stops:
            raise HostError("the daemon does not answer")
        self.servers = []


def request_of(*overrides: str, keep: bool = False) -> up.UpRequest:
    """A plain `up` of the CPU profile."""
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


def failing(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(launch, "wait_for_server", fail)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("failure", "shown"),
    [(NotReadyError("no"), DeployError), (KeyboardInterrupt(), DeployError), (OSError(28, "full"), OSError)],
)
def test_failed_start_leaves_no_server_unless_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: BaseException, shown: type[Exception], keep: bool
) -> None:
    failing(monkeypatch, failure)
    runtime = Recording()
    with pytest.raises(shown):
        launch.start_server(start(keep=keep), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert bool(runtime.servers) == keep


@pytest.mark.parametrize(
    ("stops", "hint"), [(True, "`tiny` was stopped; nothing is left running"), (False, "stop with `deploy down tiny`")]
)
def test_ctrl_c_reports_remaining_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], stops: bool, hint: str
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    servers = Servers(Home(tmp_path), {"process": Recording(stops=stops)})  # type: ignore[dict-item]
    with pytest.raises(Interrupted) as caught:
        launch.start_server(start(keep=False), servers)
    assert hint in (caught.value.hint or capsys.readouterr().err)


def test_failed_server_is_stopped_even_without_diagnosis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Diagnosed first, a server stayed up whenever the daemon did not answer, and the error of the start was lost."""
    failing(monkeypatch, NotReadyError("the server exited"))
    runtime = Recording(flapping=True)
    with pytest.raises(NotReadyError, match="the server exited") as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert runtime.servers == []
    assert runtime.asked == ["stop", "logs"]
    assert "the daemon does not answer" in str(caught.value.details)


@pytest.mark.parametrize("failure", [NotReadyError("the server exited"), OSError(28, "No space left on device")])
def test_start_error_is_raised_when_stop_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    """The stop's own error used to take the place of the start's, and nothing said what was left."""
    failing(monkeypatch, failure)
    runtime = Recording(flapping=True, stops=False)
    with pytest.raises(type(failure)) as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert caught.value is failure
    stderr = capsys.readouterr().err
    assert "warning: `tiny` may still run: the daemon does not answer" in stderr
    assert "hint: `deploy down tiny` stops it" in stderr


def test_unreadable_log_does_not_hide_start_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Unreadable(Recording):
        def logs(self, _handle: RunningServer, *, follow: bool) -> Iterator[str]:
            assert not follow
            raise PermissionError(13, "Permission denied")

    failing(monkeypatch, NotReadyError("the server exited"))
    with pytest.raises(NotReadyError, match="the server exited") as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": Unreadable()}))  # type: ignore[dict-item]
    assert "cannot read the log" in caught.value.details


def test_interrupt_during_runtime_start_leaves_no_server(tmp_path: Path) -> None:
    class Refusing(Recording):
        def start(self, *_: object, **__: object) -> RunningServer:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": Refusing()}))  # type: ignore[dict-item]
    assert str(caught.value) == "interrupted; no server was started"
    assert caught.value.hint == "nothing is left running"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), HostError("GPU 4 still holds 41 %")])
def test_failed_replacement_hints_at_recovery_command(tmp_path: Path, failure: BaseException) -> None:
    """Ctrl-C while the old server's VRAM drained lost the command that brings it back."""
    runtime = Recording()
    runtime.start(name="tiny", run_dir=tmp_path)
    servers = Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]
    open_run(Home(tmp_path), "tiny", load("cpu-tiny").plan).save(
        "request.json", {"version": RECORD_VERSION, "command": "deploy up --profile old"}
    )
    with pytest.raises(DeployError) as caught, up._recovery_hint(servers, "tiny"):
        raise failure
    assert caught.value.hint.endswith("restart it: deploy up --profile old")
    none = Servers(Home(tmp_path), {"process": Recording()})  # type: ignore[dict-item]
    with pytest.raises(DeployError) as caught, up._recovery_hint(none, "tiny", "`deploy restart tiny`"):
        raise failure
    assert caught.value.hint.endswith("restart it: `deploy restart tiny`")


def test_full_disk_is_detected_before_old_server_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`up --replace` and `restart` took a server down for one that could not even be written down."""
    runtime, artifacts = Recording(), render_artifacts(load("cpu-tiny").plan)
    runtime.start(name="tiny", run_dir=tmp_path)
    made = PreparedRun(artifacts=artifacts, records={})
    servers = Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]
    monkeypatch.setattr(up, "open_servers", lambda *_: nullcontext(servers))
    monkeypatch.setattr(up, "prepare_start", lambda *_: made)
    monkeypatch.setattr(up, "require_host", lambda *_, **__: None)
    monkeypatch.setattr("orchestrator.runs.run_dir.atomic_write_all", full_disk)
    with pytest.raises(HostError, match="No space left on device") as caught:
        up.up(replace(request_of(), name="tiny", replace=True), Home(tmp_path))
    assert runtime.asked == []
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
    monkeypatch.setattr(verify, "dead_processes", lambda *_: "")
    monkeypatch.setattr(verify, "run_smoke_test", lambda *_, **__: report)
    monkeypatch.setattr("orchestrator.runs.run_dir.atomic_write_all", full_disk)
    servers = Servers(Home(tmp_path), {"process": runtime})  # type: ignore[dict-item]
    assert verify.smoke_server(servers, "tiny", strict_kernels=False) is report
    assert "warning: cannot save all results: cannot write below" in capsys.readouterr().err


def test_second_ctrl_c_during_cleanup_leaves_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It fell between the first one and the holding of signals, and the server stayed."""

    def impatient(*arguments: object, **options: object) -> BaseException:
        signal.raise_signal(signal.SIGINT)
        return give_up(*arguments, **options)  # type: ignore[arg-type]

    failing(monkeypatch, KeyboardInterrupt())
    give_up = launch._stop_and_explain
    monkeypatch.setattr(launch, "_stop_and_explain", impatient)
    runtime, before = Recording(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.asked == ["stop"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_verified_start_is_not_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It ended with 130, which promises that nothing is left, and left the server up."""

    def interrupt(*_: object) -> None:
        pytest.fail("it was interrupted")

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
        def logs(self, _handle: RunningServer, *, follow: bool) -> Iterator[str]:
            assert not follow
            self.asked.append("logs")
            signal.raise_signal(signal.SIGINT)
            yield from iter(lambda: "a line", "")

    failing(monkeypatch, NotReadyError("the server exited"))
    runtime, before = Talkative(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(NotReadyError) as caught:
            launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.asked == ["stop", "logs"]
    assert "interrupted" in caught.value.details


def test_server_started_during_interrupt_is_stopped(tmp_path: Path) -> None:
    class Interrupted(Recording):
        def start(self, *arguments: object, name: str, run_dir: Path, **options: object) -> RunningServer:
            super().start(*arguments, name=name, run_dir=run_dir, **options)
            raise KeyboardInterrupt

    runtime = Interrupted()
    with pytest.raises(DeployError):
        launch.start_server(start(keep=False), Servers(Home(tmp_path), {"process": runtime}))  # type: ignore[dict-item]
    assert runtime.servers == []


def end_in_the_middle(number: signal.Signals, done: list[str]) -> None:
    with defer_signals():
        signal.raise_signal(number)
        done.append("the rest of the block")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_termination_signals_are_deferred_until_block_ends(number: signal.Signals) -> None:
    """SIGHUP, a terminal that goes away, used to end a start between a process and its record."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, done = signal.signal(number, interrupt), list[str]()
    try:
        with pytest.raises(KeyboardInterrupt):
            end_in_the_middle(number, done)
    finally:
        signal.signal(number, before)
    assert done


def test_recorded_command_repeats_the_request() -> None:
    """It is kept beside the server, and named as the way back to it."""
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
    """As a bare OSError it lost the way back to the server that was replaced."""
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
    def far_enough(*_: object) -> None:
        raise HostError("far enough")

    monkeypatch.setenv("KEY", "k" * 20)
    monkeypatch.setattr("orchestrator.servers.start.up.open_servers", far_enough)
    with pytest.raises(HostError, match="far enough"):
        up.up(request_of(*overrides), Home(tmp_path))
    assert ("without an API key; anyone who can reach it can use it" in capsys.readouterr().err) is is_reported
