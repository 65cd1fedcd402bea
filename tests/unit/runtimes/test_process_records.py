"""Which process is meant, what is recorded of it, and what its end is called."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import procfs
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes import Status
from orchestrator.runtimes.process.record import Record, read_record, write_record
from orchestrator.runtimes.process.runtime import ProcessRuntime

RECORD = Record(
    name="tiny",
    profile="cpu-tiny",
    plan_digest="d1",
    url="http://127.0.0.1:30010",
    argv=("python3", "-m", "sglang.launch_server"),
    started_at="2026-07-03T10:00:00+00:00",
    supervisor="boot/10/100",
    server="boot/11/101",
    exit_code=None,
    ended_at=None,
    stopped=False,
)


@pytest.fixture(autouse=True)
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of the test's own."""
    folder = tmp_path / "proc"
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("boot\n")
    monkeypatch.setattr(procfs, "_PROC", folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def runs(proc: Path, pid: int, *, parent: int, session: int, started: int, state: str = "S") -> None:
    """Let a process run, with a name that makes a parser stumble."""
    after_start = " ".join(["0"] * 30)
    stat = (
        f"{pid} (sglang) :: (x) {state} {parent} {pid} {session} 0 -1 0 0 0 0 0 0 0 0 0 0 0 1 0 {started} {after_start}"
    )
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(stat)


def keep(home: Home, record: Record, run: str = "1") -> Path:
    folder = home.runs / record.name / run
    folder.mkdir(parents=True)
    write_record(folder, record)
    return folder


def test_family_is_the_session_and_its_descendants_wherever_they_went(proc: Path) -> None:
    runs(proc, 10, parent=1, session=10, started=100)
    runs(proc, 11, parent=10, session=10, started=101)
    runs(proc, 12, parent=11, session=12, started=102)  # has left the session
    runs(proc, 13, parent=12, session=12, started=103)
    runs(proc, 14, parent=1, session=14, started=104)  # somebody else
    runs(proc, 15, parent=11, session=10, started=105, state="Z")

    assert [process.pid for process in procfs.family("boot/10/100")] == [10, 11, 12, 13]


def test_family_without_its_leader_is_still_found(proc: Path) -> None:
    runs(proc, 11, parent=1, session=10, started=101)

    assert [process.pid for process in procfs.family("boot/10/100")] == [11]


@pytest.mark.parametrize("identified", ["boot/10/99", "earlier-boot/10/100"])
def test_pid_of_another_time_or_boot_is_somebody_else(proc: Path, identified: str) -> None:
    runs(proc, 10, parent=1, session=10, started=100)

    assert procfs.family(identified) == ()
    assert procfs.find_process(identified) is None
    assert procfs.identity(10) == "boot/10/100"


def test_record_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)

    assert read_record(tmp_path) == RECORD
    assert [(path.name, path.stat().st_mode & 0o777) for path in tmp_path.glob("*.json")] == [("process.json", 0o600)]
    assert read_record(tmp_path / "elsewhere") is None


def test_newest_run_of_a_name_is_its_server_unless_it_was_stopped(home: Home) -> None:
    keep(home, replace(RECORD, started_at="2026-07-03T09:00:00+00:00", stopped=True), "old")
    new = keep(home, RECORD, "new")
    keep(home, replace(RECORD, name="gone", stopped=True))
    (home.runs / "never-started").mkdir()

    (handle,) = ProcessRuntime(home).find()

    assert (handle.name, handle.run_dir, handle.identity) == ("tiny", str(new), "boot/10/100")
    assert ProcessRuntime(home).find("gone") == ()


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (137, "killed by SIGKILL"),
        (255, "exit code 255"),
        (None, "its supervisor was killed, and the server with it"),
    ],
)
def test_end_of_a_server_in_words(home: Home, code: int | None, detail: str) -> None:
    keep(home, replace(RECORD, exit_code=code))
    runtime = ProcessRuntime(home)

    state = runtime.state(runtime.find("tiny")[0])

    assert (state.status, state.exit_code, state.detail) == (Status.EXITED, code, detail)


def test_server_runs_as_long_as_anything_of_it_does(home: Home, proc: Path) -> None:
    keep(home, RECORD)
    runtime = ProcessRuntime(home)
    (handle,) = runtime.find("tiny")
    runs(proc, 11, parent=1, session=10, started=101)

    assert runtime.state(handle).status is Status.RUNNING
    assert runtime.state(replace(handle, run_dir="/nowhere")).status is Status.ABSENT


@pytest.mark.parametrize("text", ["", '{"name":', "[]", '{"argv": ["python3"]}', '{"argv": 3}'])
def test_a_record_that_cannot_be_read_is_named_and_never_taken_for_no_server(home: Home, text: str) -> None:
    (keep(home, RECORD) / "process.json").write_text(text)
    with pytest.raises(HostError, match=r"the record `.*process\.json` cannot be read"):
        ProcessRuntime(home).find()
