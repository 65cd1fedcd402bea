"""Process records: identification of processes, record files, and exit reasons."""

import errno
import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.core import procfs
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process import stop
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import Record, read_record, write_record

RECORD = Record(
    name="tiny",
    profile="cpu-tiny",
    plan_digest="d1",
    url="http://127.0.0.1:30010",
    argv=("python3", "-m", "sglang.launch_server"),
    started_at="2026-07-03T10:00:00+00:00",
    token="/home/runs/tiny/1",
    supervisor="boot/10/100",
    server="boot/11/101",
    output="pipe:[7]",
    exit_code=None,
    ended_at=None,
    stopped=False,
)


@pytest.fixture(autouse=True)
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a fake /proc."""
    folder = tmp_path / "proc"
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("boot\n")
    monkeypatch.setattr(procfs, "_PROC", folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def add_process(proc: Path, pid: int, *, parent: int, session: int, started: int, state: str = "S") -> None:
    """Add a process with a name that is hard to parse."""
    after_start = " ".join(["0"] * 30)
    stat = (
        f"{pid} (sglang) :: (x) {state} {parent} {pid} {session} 0 -1 0 0 0 0 0 0 0 0 0 0 0 1 0 {started} {after_start}"
    )
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(stat)


def write_run(home: Home, record: Record, run: str = "1") -> Path:
    folder = home.runs / record.name / run
    folder.mkdir(parents=True)
    write_record(folder, record)
    return folder


def set_inherited(proc: Path, pid: int, *, token: str = "", output: str = "") -> None:
    """Give a process an inherited environment and output."""
    (proc / str(pid) / "environ").write_bytes(f"HOME=/root\0DEPLOY_SERVER={token}\0".encode())
    (proc / str(pid) / "fd").mkdir()
    (proc / str(pid) / "fd/1").symlink_to("/dev/null")
    (proc / str(pid) / "fd/2").symlink_to(output or "/dev/null")


def pids(marks: procfs.ProcessMarkers) -> list[int]:
    return [process.pid for process in procfs.server_processes(marks)]


def test_server_processes_include_session_and_descendants(proc: Path) -> None:
    add_process(proc, 10, parent=1, session=10, started=100)
    add_process(proc, 11, parent=10, session=10, started=101)
    add_process(proc, 12, parent=11, session=12, started=102)  # left the session
    add_process(proc, 13, parent=12, session=12, started=103)
    add_process(proc, 14, parent=1, session=14, started=104)  # an unrelated process
    add_process(proc, 15, parent=11, session=10, started=105, state="Z")

    assert pids(RECORD.markers) == [10, 11, 12, 13]


def test_session_with_reused_supervisor_pid_is_not_included(proc: Path) -> None:
    """A daemon that called setsid and forked leaves a session without its leader."""
    add_process(proc, 20, parent=1, session=10, started=300)
    set_inherited(proc, 20, token="/elsewhere", output="pipe:[8]")

    assert pids(RECORD.markers) == []


def test_orphans_are_identified_by_inherited_token_and_output(proc: Path) -> None:
    add_process(proc, 21, parent=1, session=21, started=103)
    set_inherited(proc, 21, token="/home/runs/tiny/1")
    add_process(proc, 22, parent=1, session=22, started=103)
    set_inherited(proc, 22, output="pipe:[7]")  # setproctitle has overwritten its environment
    add_process(proc, 23, parent=22, session=22, started=104)
    add_process(proc, 24, parent=1, session=24, started=99)  # started before the server
    set_inherited(proc, 24, token="/home/runs/tiny/1")
    add_process(proc, 25, parent=1, session=25, started=104)
    set_inherited(proc, 25, token="/home/runs/tiny/10")

    assert pids(RECORD.markers) == [21, 22, 23]
    assert pids(procfs.ProcessMarkers(token="/home/runs/tiny/1")) == [21, 24]


@pytest.mark.parametrize("identity", ["boot/10/99", "earlier-boot/10/100"])
def test_reused_pid_is_not_the_recorded_process(proc: Path, identity: str) -> None:
    add_process(proc, 10, parent=1, session=10, started=100)

    assert pids(replace(RECORD, supervisor=identity, server=None).markers) == []
    assert procfs.find_process(identity) is None
    assert procfs.process_identity(10) == "boot/10/100"


def test_record_round_trips_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "1"
    folder.mkdir(parents=True)
    write_record(folder, RECORD)

    assert read_record(folder) == RECORD
    assert [(path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [("process.json", 0o600)]
    assert read_record(tmp_path / "elsewhere") is None


def test_newest_run_is_the_server_unless_stopped(home: Home) -> None:
    write_run(home, replace(RECORD, started_at="2026-07-03T09:00:00+00:00", stopped=True), "old")
    new = write_run(home, RECORD, "new")
    write_run(home, replace(RECORD, name="gone", stopped=True))
    (home.runs / "never-started").mkdir()

    (handle,) = ProcessRuntime(home).find()

    assert (handle.name, handle.run_dir, handle.runtime_id) == ("tiny", str(new), "boot/10/100")
    assert ProcessRuntime(home).find("gone") == ()


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (137, "killed by SIGKILL"),
        (255, "exit code 255"),
        (None, "the supervisor was killed, and the server with it"),
    ],
)
def test_exited_server_has_readable_reason(home: Home, code: int | None, detail: str) -> None:
    write_run(home, replace(RECORD, exit_code=code))
    runtime = ProcessRuntime(home)

    state = runtime.state(runtime.find("tiny")[0])

    assert (state.status, state.exit_code, state.detail) == (Status.EXITED, code, detail)


def test_server_with_only_orphans_running_is_exited(home: Home, proc: Path) -> None:
    folder = write_run(home, RECORD)
    runtime = ProcessRuntime(home)
    (handle,) = runtime.find("tiny")
    add_process(proc, 12, parent=1, session=12, started=102)
    set_inherited(proc, 12, token=RECORD.token)
    write_run(home, replace(RECORD, started_at="2030-01-01T00:00:00+00:00", supervisor="boot/8/80", server=None), "2")

    state = runtime.state(handle)

    assert (state.status, state.exit_code) == (Status.EXITED, None)
    assert state.detail == "the supervisor was killed, and the server with it; 1 of its processes are still running"
    assert str(folder) in [handle.run_dir for handle in runtime.find("tiny")]
    assert runtime.state(replace(handle, run_dir="/nowhere")).status is Status.NOT_FOUND


@pytest.mark.parametrize("alive", [10, 11])
def test_server_is_running_while_it_or_supervisor_runs(home: Home, proc: Path, alive: int) -> None:
    write_run(home, RECORD)
    runtime = ProcessRuntime(home)
    add_process(proc, alive, parent=1, session=alive, started=90 + alive)

    assert runtime.state(runtime.find("tiny")[0]).status is Status.RUNNING


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def another_users(path: Path) -> None:
    path.write_text(json.dumps(asdict(RECORD)))
    os.chown(path, 65534, 65534)


def file_with(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


def changed(**fields: object) -> Callable[[Path], None]:
    return file_with(json.dumps({**asdict(RECORD), **fields}))


UNREADABLE = {
    "empty": file_with(""),
    "truncated": file_with('{"name":'),
    "a list": file_with("[]"),
    "incomplete": file_with('{"argv": ["python3"]}'),
    "deeply nested": file_with("[" * 100_000),
    "not text": lambda path: path.write_bytes(b"\xff\xfe") and None,
    "unknown field": changed(cgroup="/sys/fs/cgroup/deploy"),
    "wrong type": changed(started_at=3),
    "invalid identity": changed(supervisor="init"),
    "of another server": changed(name="victim"),
    "shared output": changed(output="/dev/null", server=None),
    "empty token": changed(token=""),
    "token with a null byte": changed(token="/\0"),
    "token with a lone surrogate": changed(token="/\ud800"),
    "color code": changed(url="\x1b[31mhttp://127.0.0.1:1"),
    "a FIFO": a_fifo,
    "a directory": Path.mkdir,
    "a link": a_link,
    "file of another user": another_users,
}


@pytest.mark.timeout(30)  # opening a FIFO may block forever
@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_record_is_unknown_and_hides_no_server(
    home: Home, proc: Path, damage: Callable[[Path], None]
) -> None:
    if damage is another_users and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    add_process(proc, 10, parent=1, session=10, started=100)
    record = write_run(home, replace(RECORD, name="lost")) / "process.json"
    record.unlink()
    damage(record)
    write_run(home, RECORD)
    runtime = ProcessRuntime(home)

    lost, tiny = runtime.find()

    assert (lost.name, tiny.name) == ("lost", "tiny")
    assert runtime.state(tiny).status is Status.RUNNING
    state = runtime.state(lost)
    assert state.status is Status.UNKNOWN
    assert f"cannot read the record `{record}`" in state.detail
    with pytest.raises(HostError, match="cannot read"):
        runtime.stop(lost, grace=0)


def test_running_run_is_preferred_to_newer_exited_runs(home: Home, proc: Path) -> None:
    add_process(proc, 10, parent=1, session=10, started=100)
    running = write_run(home, RECORD, "1")
    ended = replace(RECORD, started_at="2030-01-01T00:00:00+00:00", supervisor="boot/8/80", server=None, exit_code=1)
    write_run(home, ended, "2")
    write_run(home, replace(ended, started_at="2031-01-01T00:00:00+00:00", stopped=True), "3")

    assert [handle.run_dir for handle in ProcessRuntime(home).find()] == [str(running)]


def test_stop_succeeds_when_record_cannot_be_written(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_dir = write_run(home, RECORD)
    monkeypatch.setattr(stop, "write_stopped", disk_full)
    runtime = ProcessRuntime(home)
    runtime.stop(runtime.find()[0], grace=0)

    stderr = capsys.readouterr().err
    assert f"stopped `tiny`, but cannot write `{run_dir / 'process.json'}`: No space left on device" in stderr


def test_name_with_path_finds_no_server(home: Home, tmp_path: Path) -> None:
    write_run(Home(tmp_path / "other"), RECORD)

    assert ProcessRuntime(home).find("../../other/runs/tiny") == ()


@pytest.mark.parametrize(("link", "target"), [("x", "tiny"), ("x/1", "tiny/1"), ("tiny", "tiny"), ("tiny/2", "tiny/1")])
def test_symlink_to_runs_of_another_home_is_ignored(home: Home, tmp_path: Path, link: str, target: str) -> None:
    """Such a record once counted as unreadable, and its processes were killed."""
    other = Home(tmp_path / "other")
    write_run(other, RECORD)
    (home.runs / link).parent.mkdir(parents=True)
    (home.runs / link).symlink_to(other.runs / target)

    assert ProcessRuntime(home).find() == ()
    assert ProcessRuntime(home).find(link.split("/", maxsplit=1)[0]) == ()


def test_copied_home_does_not_own_original_servers(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    run_dir = write_run(other, RECORD)
    write_run(home, replace(RECORD, token=str(run_dir)))

    assert ProcessRuntime(home).find() == ()
    run_dir.rename(tmp_path / "away")
    assert [handle.name for handle in ProcessRuntime(home).find()] == ["tiny"]  # the home was moved


def test_symlinked_run_directory_is_rejected(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    home.runs.mkdir(parents=True)
    (home.runs / "tiny").symlink_to(target)

    with pytest.raises(OSError, match="a symbolic link"):
        home.make_runs("tiny")


def test_signal_skips_processes_with_reused_pid(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, _: sent.append(pid))
    for pid in (10, 11, 12):
        add_process(proc, pid, parent=1, session=10, started=100)
    known = procfs.server_processes(RECORD.markers)
    add_process(proc, 11, parent=1, session=11, started=300)
    add_process(proc, 12, parent=1, session=10, started=100, state="Z")

    procfs.signal_processes(known, signal.SIGKILL)

    assert sent == [10]
