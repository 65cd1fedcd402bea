"""What goes wrong with a real server of the process runtime, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer, healthy, processes_of
from patience import wait_for

from orchestrator.core.errors import NameTakenError
from orchestrator.core.secret import Secret
from orchestrator.runtimes import Status
from orchestrator.runtimes.process.record import read_record, write_record
from orchestrator.runtimes.process.runtime import ProcessRuntime

pytestmark = pytest.mark.engine

Start = Callable[..., CpuServer]
NO_CHECKPOINT = ("model.origin.kind=directory", "model.origin.location=/nonexistent")


@pytest.fixture
def start(cpu_engine: CpuEngine) -> Iterator[Start]:
    """Start servers that are taken down after the test, however it ends."""
    started: list[CpuServer] = []

    def run(name: str, *overrides: str) -> CpuServer:
        started.append(cpu_engine.start(name, *overrides))
        return started[-1]

    yield run
    for one in started:
        one.runtime.stop(one.handle, grace=0)


def server_pid(server: CpuServer) -> int:
    record = read_record(Path(server.handle.run_dir))
    assert record is not None
    assert record.server is not None
    return int(record.server.split("/")[1])


def wait_for_nothing_left(server: CpuServer) -> None:
    """The supervisor goes last, a moment after it has recorded the end."""
    wait_for(lambda: not processes_of(server.handle))
    assert not healthy(server.url)


def test_server_that_exits_while_loading_leaves_its_code_and_its_log(start: Start) -> None:
    broken = start("broken", *NO_CHECKPOINT)

    wait_for(lambda: broken.runtime.state(broken.handle).status is Status.EXITED)

    assert broken.runtime.state(broken.handle).exit_code == 1
    assert any("/nonexistent" in line for line in broken.runtime.logs(broken.handle, follow=False))
    wait_for_nothing_left(broken)


def test_server_killed_while_serving_takes_its_schedulers_with_it(start: Start) -> None:
    victim = start("victim")
    victim.wait_until_ready()

    os.kill(server_pid(victim), signal.SIGKILL)
    wait_for(lambda: victim.runtime.state(victim.handle).status is Status.EXITED)

    state = victim.runtime.state(victim.handle)
    assert (state.exit_code, state.detail) == (137, "killed by SIGKILL")
    wait_for_nothing_left(victim)


def test_killed_supervisor_leaves_no_orphans(start: Start) -> None:
    orphan = start("orphan")
    orphan.wait_until_ready()

    os.kill(int(orphan.handle.identity.split("/")[1]), signal.SIGKILL)
    wait_for(lambda: not processes_of(orphan.handle))

    state = orphan.runtime.state(orphan.handle)
    assert (state.status, state.exit_code) == (Status.EXITED, None)
    wait_for_nothing_left(orphan)


def test_server_outlives_a_killed_cli_and_is_found_again(cpu_engine: CpuEngine) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from cpu_server import CpuEngine
        from orchestrator.core.paths import Home
        CpuEngine(home=Home(Path(sys.argv[1])), python=Path(sys.argv[2])).start("survivor")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    lines = "\n".join(line.strip() for line in script.splitlines())
    argv = [sys.executable, "-c", lines, str(cpu_engine.home.root), str(cpu_engine.python)]
    code = subprocess.run(argv, cwd=Path(__file__).parent, check=False).returncode

    runtime = ProcessRuntime(cpu_engine.home)
    (handle,) = runtime.find("survivor")
    assert code == -signal.SIGKILL
    assert runtime.state(handle).status is Status.RUNNING
    runtime.stop(handle, grace=0)
    assert not processes_of(handle)
    assert runtime.find("survivor") == ()


def test_pid_that_belongs_to_somebody_else_now_is_neither_shown_nor_killed(start: Start) -> None:
    old = start("reused", *NO_CHECKPOINT)
    wait_for(lambda: old.runtime.state(old.handle).status is Status.EXITED)
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        run_dir = Path(old.handle.run_dir)
        boot, _, started = old.handle.identity.split("/")
        reused = f"{boot}/{bystander.pid}/{started}"
        record = read_record(run_dir)
        assert record is not None
        write_record(run_dir, replace(record, supervisor=reused, server=reused, exit_code=None))
        (handle,) = old.runtime.find("reused")

        assert old.runtime.state(handle).status is Status.EXITED
        old.runtime.stop(handle, grace=0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_of_two_starts_of_one_name_one_is_refused(cpu_engine: CpuEngine) -> None:
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(cpu_engine.start("twice"))
        except NameTakenError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runtime = ProcessRuntime(cpu_engine.home)
    handles = runtime.find("twice")
    for handle in handles:
        runtime.stop(handle, grace=0)

    assert len(handles) == 1
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CpuServer", "NameTakenError"]


def test_api_key_protects_the_server_and_stands_nowhere(cpu_engine: CpuEngine) -> None:
    key = "a-key-that-must-not-be-seen"
    artifacts = cpu_engine.artifacts("server.api_key_env=DEPLOY_API_KEY")
    locked = cpu_engine.start("locked", artifacts=artifacts, secrets={"DEPLOY_API_KEY": Secret(key)})
    try:
        locked.wait_until_ready()
        shown = [
            Path(f"/proc/{process.pid}/{file}")
            for process in processes_of(locked.handle)
            for file in ("cmdline", "environ")
        ]

        assert locked.complete().status_code == 401
        assert "api_key='[REDACTED]'" in locked.log.read_text()
        assert all(key.encode() not in path.read_bytes() for path in shown)
        assert all(key not in path.read_text() for path in Path(locked.handle.run_dir).iterdir())
    finally:
        locked.runtime.stop(locked.handle, grace=0)
