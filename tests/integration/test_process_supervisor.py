"""The supervisor with small programs in place of sglang: what it writes, hides, forwards and ends."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer
from left_running import programs_with
from patience import wait_for

from orchestrator.core import shell
from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.core.procfs import family
from orchestrator.core.secret import Secret
from orchestrator.runtimes import Handle, Status
from orchestrator.runtimes.process.record import read_record
from orchestrator.runtimes.process.runtime import ProcessRuntime

Start = Callable[..., CpuServer]
DETACHES = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep({seconds})"
STARTER = """
import sys
from pathlib import Path
from cpu_server import CpuEngine
from orchestrator.core.paths import Home
engine = CpuEngine(home=Home(Path(sys.argv[1])), python=Path(sys.executable))
engine.start(sys.argv[2], artifacts=engine.artifacts(argv=("sleep", "600")))
"""


@pytest.fixture
def engine(tmp_path: Path) -> CpuEngine:
    """This interpreter as the engine."""
    return CpuEngine(home=Home(tmp_path), python=Path(sys.executable))


@pytest.fixture
def start(engine: CpuEngine) -> Iterator[Start]:
    """Start a Python program as if it were a server; it is taken down after the test."""
    started: list[CpuServer] = []

    def run(program: str, secrets: dict[str, str] | None = None) -> CpuServer:
        artifacts = engine.artifacts("server.api_key_env=KEY", argv=(sys.executable, "-c", program))
        held = {name: Secret(value) for name, value in (secrets or {}).items()}
        started.append(engine.start(f"server-{len(started)}", artifacts=artifacts, secrets=held))
        return started[-1]

    yield run
    for server in started:
        server.runtime.stop(server.handle, grace=0)


def output(server: CpuServer) -> list[str]:
    """Everything it writes until it ends."""
    return list(server.runtime.logs(server.handle, follow=True))


def test_server_runs_in_the_home_with_its_own_variables_and_no_input(start: Start, engine: CpuEngine) -> None:
    server = start("import os, sys; print(os.getcwd(), os.environ['TORCHDYNAMO_DISABLE'], repr(sys.stdin.read()))")

    assert output(server) == [f"{engine.home.root} 1 ''"]


def test_both_streams_and_progress_bars_become_lines(start: Start) -> None:
    server = start(r"import sys; print('50%\r100%\r'); print('oops', file=sys.stderr); print('no line end', end='')")

    assert output(server) == ["50%", "100%", "oops", "no line end"]


def test_key_comes_as_a_config_file_that_can_be_read_once(start: Start) -> None:
    program = """
import os, pathlib, sys, time
path = pathlib.Path(sys.argv[sys.argv.index('--config') + 1])
print(path.read_text()[::-1])
while path.exists(): time.sleep(0.01)
print('KEY' in os.environ, os.environ['TOKEN'][::-1], 'and sk-12345 is', os.environ['TOKEN'])
"""
    server = start(program, {"KEY": "sk-12345", "TOKEN": "other-secret"})

    assert output(server) == ['}"54321-ks" :"yek-ipa"{', "False terces-rehto and [REDACTED] is [REDACTED]"]
    assert server.log.stat().st_mode & 0o077 == 0


def test_inherited_key_is_not_handed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-12345")
    server = start("import os; print('KEY' in os.environ)", {"KEY": "sk-12345"})

    assert output(server) == ["False"]


def test_missing_interpreter_is_an_error_and_the_name_stays_free(engine: CpuEngine) -> None:
    with pytest.raises(StartError) as raised:
        engine.start("nobody", artifacts=engine.artifacts(argv=("no/such/python", "-m", "sglang")))

    assert raised.value.details == "there is no program `no/such/python` on this machine"
    assert ProcessRuntime(engine.home).find() == ()


@pytest.mark.parametrize("seconds", [0, 600])
def test_children_that_moved_to_another_session_end_with_the_server(start: Start, seconds: int) -> None:
    server = start(DETACHES.format(seconds=seconds))
    if seconds:
        wait_for(lambda: len(family(server.handle.identity)) == 3)
        server.runtime.stop(server.handle, grace=0)
    else:
        wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)

    wait_for(lambda: family(server.handle.identity) == ())  # the supervisor goes last


def test_sigterm_to_the_supervisor_ends_the_server_in_order(start: Start) -> None:
    server = start("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up'); time.sleep(600)")
    wait_for(lambda: "up" in server.runtime.logs(server.handle, follow=False))

    os.kill(int(server.handle.identity.split("/")[1]), signal.SIGTERM)

    wait_for(lambda: server.runtime.state(server.handle).exit_code == 7)


def test_handle_of_an_earlier_server_neither_shows_nor_stops_the_present_one(start: Start) -> None:
    present = start("import time; time.sleep(600)")
    earlier = replace(present.handle, identity="another-boot/1/1")

    present.runtime.stop(earlier, grace=0)

    assert present.runtime.state(earlier).status is Status.ABSENT
    assert present.runtime.state(present.handle).status is Status.RUNNING


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_during_a_start_takes_the_server_down(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> shell.ProgramResult:
        signal.raise_signal(signal.SIGINT)  # waits until it is known what was started
        return run(*arguments, **options)  # type: ignore[arg-type]

    run = shell.run
    monkeypatch.setattr(shell, "run", interrupted)

    with pytest.raises(KeyboardInterrupt):
        engine.start("interrupted", artifacts=engine.artifacts(argv=("sleep", "600")))

    assert ProcessRuntime(engine.home).find() == ()
    (record,) = [read_record(path.parent) for path in engine.home.runs.glob("*/*/process.json")]
    assert record is not None
    assert family(record.supervisor) == ()


def test_starter_killed_at_any_moment_leaves_a_server_that_is_found_or_none(engine: CpuEngine) -> None:
    """The moments cover imports, the hand-over, and the time after."""
    moments = random.Random(7)
    runtime = ProcessRuntime(engine.home)
    for attempt in range(8):
        argv = [sys.executable, "-c", STARTER, str(engine.home.root), f"killed-{attempt}"]
        named = {"ATTEMPT": f"{engine.home.root}/{attempt}"}
        with subprocess.Popen(argv, cwd=Path(__file__).parent, env={**os.environ, **named}) as starter:
            time.sleep(moments.uniform(0.2, 0.9))
            starter.kill()
        # What was handed over by then comes up and is found, or it ends.
        wait_for(lambda: bool(running(runtime)) or not programs_with("ATTEMPT", named["ATTEMPT"]))  # noqa: B023
        for handle in running(runtime):
            runtime.stop(handle, grace=0)
        wait_for(lambda: not programs_with("ATTEMPT", named["ATTEMPT"]))  # noqa: B023


def running(runtime: ProcessRuntime) -> list[Handle]:
    return [handle for handle in runtime.find() if runtime.state(handle).status is Status.RUNNING]
