"""Tests of the supervisor, with small programs in place of sglang."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer, processes_of
from leftover_processes import programs_with
from proc_files import proc_files
from waits import wait_for

from orchestrator.core import subprocesses
from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.core.procfs import VARIABLE, read_process, server_processes
from orchestrator.core.secrets import Secret
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import Status, Unit
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import read_record

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
    return CpuEngine(home=Home(tmp_path), python=Path(sys.executable))


@pytest.fixture
def start(engine: CpuEngine) -> Iterator[Start]:
    """Return a function that starts a Python program as a server; stop all of them after the test."""
    started: list[CpuServer] = []

    def run(program: str, secrets: dict[str, str] | None = None) -> CpuServer:
        artifacts = engine.artifacts("server.api_key_env=KEY", argv=(sys.executable, "-c", program))
        wrapped = {name: Secret(value) for name, value in (secrets or {}).items()}
        started.append(engine.start(f"server-{len(started)}", artifacts=artifacts, secrets=wrapped))
        return started[-1]

    yield run
    for server in started:
        server.runtime.stop(server.handle, grace=0)


def output(server: CpuServer) -> list[str]:
    """Return all that a server writes until it ends."""
    return list(server.runtime.logs(server.handle, follow=True))


def test_server_runs_in_home_with_plan_variables(start: Start, engine: CpuEngine) -> None:
    server = start("import os, sys; print(os.getcwd(), os.environ['TORCHDYNAMO_DISABLE'], repr(sys.stdin.read()))")

    assert output(server) == [f"{engine.home.root} 1 ''"]


def test_stdout_stderr_and_progress_bars_become_log_lines(start: Start) -> None:
    server = start(r"import sys; print('50%\r100%\r'); print('oops', file=sys.stderr); print('no line end', end='')")

    assert output(server) == ["50%", "100%", "oops", "no line end"]


def test_output_burst_does_not_block_server(start: Start) -> None:
    """Lines full of secret matches are redacted at a few MB/s; a pipe of 64 KiB made the server wait for that."""
    line = "Authorization: Bearer abc.def-1 api_key='wJ4-zTq8-mMv2'"
    server = start(f"""
import fcntl, os, time
lines = ({line!r} + "\\n").encode() * 15000
began = time.monotonic()
os.write(1, lines)
print("took", time.monotonic() - began, "of", fcntl.fcntl(1, fcntl.F_GETPIPE_SZ))
""")
    *copied, took = output(server)
    assert copied == ["Authorization: Bearer [REDACTED] api_key='[REDACTED]'"] * 15000
    assert took.endswith(f"of {1 << 20}")
    print(took)


def test_key_is_passed_in_config_file_that_is_read_once(start: Start) -> None:
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


def test_inherited_key_is_not_passed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-12345")
    server = start("import os; print('KEY' in os.environ)", {"KEY": "sk-12345"})

    assert output(server) == ["False"]


def test_missing_interpreter_fails_and_leaves_name_free(engine: CpuEngine) -> None:
    with pytest.raises(StartError) as raised:
        engine.start("nobody", artifacts=engine.artifacts(argv=("no/such/python", "-m", "sglang")))

    assert raised.value.details == "no program `no/such/python` found on this host"
    assert ProcessRuntime(engine.home).find() == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=256k", "none", disk], check=False)
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_start_on_full_disk_fails_naming_the_file(small_disk: Path) -> None:
    engine = CpuEngine(home=Home(small_disk), python=Path(sys.executable))
    artifacts = engine.artifacts(argv=("sleep", "600"))
    open_run(engine.home, "full", artifacts.plan)
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)) == 4096:
            pass

    with pytest.raises(StartError) as raised:
        engine.start("full", artifacts=artifacts)

    assert raised.value.details == f"No space left on device: `{raised.value.location}/process.json`"
    assert ProcessRuntime(engine.home).find() == ()


FILLS_UP = """
import errno, sys, time
from orchestrator.runtimes.supervisor import main
write = supervisor.write_record
def fill_up(run_dir, record):
    if record.server is not None:  # the server runs and has started a child process
        time.sleep(1)
        raise OSError(errno.ENOSPC, "No space left on device", str(run_dir))
    write(run_dir, record)
supervisor.write_record = fill_up
sys.exit(main.main())
"""


def test_disk_filling_up_after_start_leaves_no_processes(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "orchestrator.core.subprocesses.python_module_argv", lambda _, lock: [sys.executable, "-c", FILLS_UP, lock]
    )

    with pytest.raises(StartError, match="cannot start `") as raised:
        engine.start("full", artifacts=engine.artifacts(argv=("sh", "-c", "setsid sleep 600 & sleep 600")))

    assert programs_with(VARIABLE, raised.value.location) == []
    assert ProcessRuntime(engine.home).find() == ()


@pytest.mark.parametrize("seconds", [0, 600])
def test_children_in_other_sessions_end_with_server(start: Start, seconds: int) -> None:
    server = start(DETACHES.format(seconds=seconds))
    if seconds:
        wait_for(lambda: len(processes_of(server.handle)) == 3)
        server.runtime.stop(server.handle, grace=0)
    else:
        wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)

    wait_for(lambda: processes_of(server.handle) == ())  # the supervisor exits last


ORPHANS = """
import os, subprocess, sys, time
def detached(**more):
    subprocess.Popen(["sleep", "600"], start_new_session=True, **more)
detached()
detached(env={})                                    # setproctitle also overwrites the environment and its marker
detached(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("up", flush=True)
time.sleep(600)
"""


def test_detached_processes_of_killed_supervisor_can_be_stopped(start: Start) -> None:
    server = start(ORPHANS)
    wait_for(lambda: "up" in server.runtime.logs(server.handle, follow=False))
    assert len(processes_of(server.handle)) == 5

    os.kill(int(server.handle.runtime_id.split("/")[1]), signal.SIGKILL)
    wait_for(lambda: len(processes_of(server.handle)) == 3)
    state = server.runtime.state(server.handle)
    assert state.status is Status.EXITED
    assert "3 of its processes are still running" in state.detail
    server.runtime.stop(server.handle, grace=0)

    assert processes_of(server.handle) == ()
    assert server.runtime.find(server.handle.name) == ()


def zombies_below(pid: int) -> int:
    stats = [stat.decode().rpartition(")")[2].split() for _, stat in proc_files("stat")]
    return sum(state == "Z" and int(parent) == pid for state, parent, *_ in stats)


@pytest.mark.parametrize("output", ["", "sys.stdout.close(); os.close(1); os.close(2);"])
def test_exited_orphans_are_reaped(start: Start, output: str) -> None:
    orphans = "[subprocess.call(['sh', '-c', 'sleep 0 & sleep 0 & sleep 0 & sleep 0 &']) for _ in range(25)]"
    server = start(f"import os, subprocess, sys, time; {output} {orphans}; open('done', 'w'); time.sleep(600)")
    wait_for((Path(server.handle.run_dir).parents[2] / "done").exists)

    wait_for(lambda: zombies_below(int(server.handle.runtime_id.split("/")[1])) == 0)
    assert server.runtime.state(server.handle).status is Status.RUNNING


def test_exit_code_is_kept_despite_many_orphans(start: Start) -> None:
    server = start(
        "import subprocess, sys; subprocess.call('for i in $(seq 200); do true & done', shell=True); sys.exit(5)"
    )

    wait_for(lambda: server.runtime.state(server.handle).exit_code == 5)


@pytest.mark.timeout(300)  # opening a FIFO may block forever
@pytest.mark.parametrize("spoil", [lambda path: path.write_text("{"), lambda path: (path.unlink(), os.mkfifo(path))])
def test_server_with_unreadable_record_can_be_stopped(start: Start, spoil: Callable[[Path], object]) -> None:
    server = start("import time; time.sleep(600)")
    processes = processes_of(server.handle)
    spoil(Path(server.handle.run_dir, "process.json"))
    (lost,) = server.runtime.find(server.handle.name)
    assert server.runtime.state(lost).status is Status.UNKNOWN

    server.runtime.stop(lost, grace=0)

    assert not any(read_process(process.pid) in processes for process in processes)
    assert server.runtime.find(server.handle.name) == ()


def environments_of(server: CpuServer) -> list[dict[str, str]]:
    texts = [Path(f"/proc/{process.pid}/environ").read_text() for process in processes_of(server.handle)]
    return [dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry) for text in texts]


def test_caller_secrets_are_absent_from_server_environments(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY", "COPY", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "sk-12345")
    monkeypatch.setenv("WANDB_API_KEY", "sk-another")  # recognized by its name only; the others also by their value
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    server = start("import time; time.sleep(600)", {"KEY": "sk-12345"})

    supervisor, program = environments_of(server)

    secrets = {"sk-12345", "sk-another"}
    assert all(secrets.isdisjoint(environ.values()) for environ in (supervisor, program))
    assert all(environ["TOKENIZERS_PARALLELISM"] == "false" for environ in (supervisor, program))


def test_hub_token_is_passed_to_downloading_server(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_notarealtoken1234")
    argv = (sys.executable, "-c", "import time; time.sleep(600)")
    server = engine.start("hub", artifacts=engine.artifacts("flags.tokenizer-path=org/repo", argv=argv))
    try:
        supervisor, program = environments_of(server)
        assert ("HF_TOKEN" in supervisor, program.get("HF_TOKEN")) == (False, "hf_notarealtoken1234")
    finally:
        server.runtime.stop(server.handle, grace=0)


def test_run_files_are_owner_only_despite_umask(start: Start, engine: CpuEngine) -> None:
    before = os.umask(0)
    try:
        server = start("import time; time.sleep(600)", {"KEY": "sk-12345"})  # a FIFO passes the key
    finally:
        os.umask(before)

    run_dir = Path(server.handle.run_dir)
    paths = [engine.home.runs, *engine.home.runs.rglob("*")]
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
    assert run_dir.is_dir()


def test_sigterm_to_supervisor_ends_server_gracefully(start: Start) -> None:
    server = start("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up'); time.sleep(600)")
    wait_for(lambda: "up" in server.runtime.logs(server.handle, follow=False))

    os.kill(int(server.handle.runtime_id.split("/")[1]), signal.SIGTERM)

    wait_for(lambda: server.runtime.state(server.handle).exit_code == 7)


def test_stale_handle_does_not_affect_current_server(start: Start) -> None:
    present = start("import time; time.sleep(600)")
    earlier = replace(present.handle, runtime_id="another-boot/1/1")

    present.runtime.stop(earlier, grace=0)

    assert present.runtime.state(earlier).status is Status.NOT_FOUND
    assert present.runtime.state(present.handle).status is Status.RUNNING


@pytest.mark.usefixtures("sigint_raises")
def test_ctrl_c_during_start_stops_server(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> subprocesses.CompletedProgram:
        signal.raise_signal(signal.SIGINT)  # handled only after the started process is known
        return run(*arguments, **options)  # type: ignore[arg-type]

    run = subprocesses.run
    monkeypatch.setattr(subprocesses, "run", interrupted)

    with pytest.raises(KeyboardInterrupt):
        engine.start("interrupted", artifacts=engine.artifacts(argv=("sleep", "600")))

    assert ProcessRuntime(engine.home).find() == ()
    (record,) = [read_record(path.parent) for path in engine.home.runs.glob("*/*/process.json")]
    assert record is not None
    assert server_processes(record.markers) == ()


SLOW_SUPERVISOR = """
import sys, time
from pathlib import Path
from orchestrator.runtimes.supervisor import main
Path(sys.argv[2]).touch()
time.sleep(1)
sys.exit(main.main())
"""
SLOW_STARTER = f"""
import sys
from orchestrator.core import subprocesses
subprocesses.python_module_argv = lambda _, lock: [sys.executable, "-c", sys.argv[3], lock, sys.argv[4]]
{STARTER}
"""


def test_server_is_found_after_starter_is_killed_during_handover(engine: CpuEngine) -> None:
    begun = engine.home.root / "begun"
    with starter(SLOW_STARTER, engine, "slow", SLOW_SUPERVISOR, str(begun)) as killed:
        wait_for(begun.exists)
        killed.kill()
    runtime = ProcessRuntime(engine.home)

    (server,) = runtime.find("slow")

    assert runtime.state(server).status is Status.RUNNING
    runtime.stop(server, grace=0)


def test_randomly_killed_starter_leaves_no_untracked_server(engine: CpuEngine) -> None:
    """The random times cover imports, the handover, and the time after it."""
    random_times = random.Random(7)
    runtime = ProcessRuntime(engine.home)
    for attempt in range(8):
        marker = f"{engine.home.root}/{attempt}"
        with starter(STARTER, engine, f"killed-{attempt}", ATTEMPT=marker) as killed:
            time.sleep(random_times.uniform(0.2, 0.9))
            killed.kill()

        for handle in running(runtime):
            runtime.stop(handle, grace=0)

        wait_for(lambda: not programs_with("ATTEMPT", marker))  # noqa: B023


def starter(program: str, engine: CpuEngine, *words: str, **environ: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", program, str(engine.home.root), *words]
    return subprocess.Popen(argv, cwd=Path(__file__).parents[1] / "support", env={**os.environ, **environ})


def running(runtime: ProcessRuntime) -> list[Unit]:
    return [handle for handle in runtime.find() if runtime.state(handle).status is Status.RUNNING]
