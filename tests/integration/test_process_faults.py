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


@pytest.fixture(scope="module")
def broken(cpu_engine: CpuEngine) -> Iterator[CpuServer]:
    """A server that has exited while it loaded."""
    server = cpu_engine.start("broken", *NO_CHECKPOINT)
    try:
        wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def test_server_that_exits_while_loading_leaves_its_code_and_its_log(broken: CpuServer) -> None:
    assert broken.runtime.state(broken.handle).exit_code == 1
    assert any("/nonexistent" in line for line in broken.runtime.logs(broken.handle, follow=False))
    wait_for_nothing_left(broken)


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


def test_pid_that_belongs_to_somebody_else_now_is_neither_shown_nor_killed(broken: CpuServer) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        run_dir = Path(broken.handle.run_dir)
        boot, _, started = broken.handle.identity.split("/")
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
