"""What goes wrong with a server of the process runtime, the scripted engine, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer, healthy, processes_of
from waits import wait_for

from orchestrator.core.errors import NameTakenError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import read_record, write_record

ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
KEY = "a-key-that-must-not-be-seen"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> CpuEngine:
    return CpuEngine(home=Home(tmp_path_factory.mktemp("home")), python=ENGINE)


def wait_for_nothing_left(server: CpuServer) -> None:
    """The supervisor goes last, a moment after it has recorded the end."""
    wait_for(lambda: not processes_of(server.handle))
    assert not healthy(server.url)


@pytest.fixture(scope="module")
def broken(scripted: CpuEngine) -> Iterator[CpuServer]:
    """A server that has exited while it loaded."""
    server = scripted.start("broken", "env.SCRIPTED_BROKEN=1")
    try:
        wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def test_server_exiting_during_load_keeps_exit_code_and_log(broken: CpuServer) -> None:
    assert broken.runtime.state(broken.handle).exit_code == 1
    assert any("broken, as it was told" in line for line in broken.runtime.logs(broken.handle, follow=False))
    wait_for_nothing_left(broken)


@pytest.fixture(scope="module")
def locked(scripted: CpuEngine) -> Iterator[CpuServer]:
    """A server that serves whoever has its key."""
    artifacts = scripted.artifacts("server.api_key_env=DEPLOY_API_KEY")
    server = scripted.start("locked", artifacts=artifacts, secrets={"DEPLOY_API_KEY": Secret(KEY)})
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def test_api_key_leaves_no_trace(locked: CpuServer) -> None:
    shown = [
        Path(f"/proc/{process.pid}/{file}")
        for process in processes_of(locked.handle)
        for file in ("cmdline", "environ")
    ]

    assert locked.complete().status_code == 401
    assert "api_key='[REDACTED]'" in locked.log.read_text()
    assert all(KEY.encode() not in path.read_bytes() for path in shown)
    assert all(KEY not in path.read_text() for path in Path(locked.handle.run_dir).iterdir())


def test_killed_supervisor_leaves_no_orphans(locked: CpuServer) -> None:
    """It ends the server: the last test that asks it."""
    assert healthy(locked.url)
    os.kill(int(locked.handle.runtime_id.split("/")[1]), signal.SIGKILL)
    wait_for(lambda: not processes_of(locked.handle))

    state = locked.runtime.state(locked.handle)
    assert (state.status, state.exit_code) == (Status.EXITED, None)
    wait_for_nothing_left(locked)


def test_server_survives_killed_cli_and_is_found(scripted: CpuEngine) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from cpu_server import CpuEngine
        from orchestrator.core.paths import Home
        CpuEngine(home=Home(Path(sys.argv[1])), python=Path(sys.argv[2])).start("survivor")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    lines = "\n".join(line.strip() for line in script.splitlines())
    argv = [sys.executable, "-c", lines, str(scripted.home.root), str(scripted.python)]
    code = subprocess.run(argv, cwd=Path(__file__).parents[1] / "support", check=False).returncode

    runtime = ProcessRuntime(scripted.home)
    (handle,) = runtime.find("survivor")
    assert code == -signal.SIGKILL
    assert runtime.state(handle).status is Status.RUNNING
    runtime.stop(handle, grace=0)
    assert not processes_of(handle)
    assert runtime.find("survivor") == ()


def test_reused_pid_is_neither_reported_nor_killed(broken: CpuServer) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        run_dir = Path(broken.handle.run_dir)
        boot, _, started = broken.handle.runtime_id.split("/")
        reused = f"{boot}/{bystander.pid}/{started}"
        record = read_record(run_dir)
        assert record is not None
        write_record(run_dir, replace(record, supervisor=reused, server=reused, exit_code=None))
        (handle,) = broken.runtime.find("broken")

        assert broken.runtime.state(handle).status is Status.EXITED
        broken.runtime.stop(handle, grace=0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_concurrent_starts_of_one_name_reject_one(scripted: CpuEngine) -> None:
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(scripted.start("twice"))
        except NameTakenError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runtime = ProcessRuntime(scripted.home)
    handles = runtime.find("twice")
    for handle in handles:
        runtime.stop(handle, grace=0)

    assert len(handles) == 1
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CpuServer", "NameTakenError"]
