"""Tests of failing servers of the process runtime, with the scripted engine: no process may be left."""

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


def wait_until_no_process_is_left(server: CpuServer) -> None:
    """Wait for the supervisor too: it exits a moment after it has recorded the end."""
    wait_for(lambda: not processes_of(server.handle))
    assert not healthy(server.url)


@pytest.fixture(scope="module")
def broken(scripted: CpuEngine) -> Iterator[CpuServer]:
    """Return a server that has exited during load."""
    server = scripted.start("broken", "env.SCRIPTED_BROKEN=1")
    try:
        wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def test_exit_during_load_keeps_exit_code_and_log(broken: CpuServer) -> None:
    assert broken.runtime.state(broken.handle).exit_code == 1
    assert any("SCRIPTED_BROKEN is set" in line for line in broken.runtime.logs(broken.handle, follow=False))
    wait_until_no_process_is_left(broken)


@pytest.fixture(scope="module")
def server_with_key(scripted: CpuEngine) -> Iterator[CpuServer]:
    artifacts = scripted.artifacts("server.api_key_env=DEPLOY_API_KEY")
    server = scripted.start("with-key", artifacts=artifacts, secrets={"DEPLOY_API_KEY": Secret(KEY)})
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def test_api_key_leaves_no_trace(server_with_key: CpuServer) -> None:
    proc_files = [
        Path(f"/proc/{process.pid}/{file}")
        for process in processes_of(server_with_key.handle)
        for file in ("cmdline", "environ")
    ]

    assert server_with_key.complete().status_code == 401
    assert "api_key='[REDACTED]'" in server_with_key.log.read_text()
    assert all(KEY.encode() not in path.read_bytes() for path in proc_files)
    assert all(KEY not in path.read_text() for path in Path(server_with_key.handle.run_dir).iterdir())


def test_killed_supervisor_leaves_no_orphans(server_with_key: CpuServer) -> None:
    """This must be the last test with `server_with_key`: it ends the server."""
    assert healthy(server_with_key.url)
    os.kill(int(server_with_key.handle.runtime_id.split("/")[1]), signal.SIGKILL)
    wait_for(lambda: not processes_of(server_with_key.handle))

    state = server_with_key.runtime.state(server_with_key.handle)
    assert (state.status, state.exit_code) == (Status.EXITED, None)
    wait_until_no_process_is_left(server_with_key)


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
