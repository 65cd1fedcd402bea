"""The lock of a server name, and the owner and permissions of its run directories."""

import errno
import os
from pathlib import Path

import pytest

from orchestrator.core.errors import HostError, NameTakenError
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import RunDir, name_lock, open_run, read_plan

pytestmark = pytest.mark.timeout(30)  # opening a FIFO may block forever


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_symlinked_lock_is_rejected_without_touching_its_target(home: Home, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x" * 100)
    (home.make_runs("tiny") / ".lock").symlink_to(precious)

    with pytest.raises(HostError), name_lock(home, "tiny"):
        pass

    assert precious.read_text() == "x" * 100


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_lock_must_be_a_regular_file(home: Home, make: object) -> None:
    make(home.make_runs("tiny") / ".lock")  # type: ignore[operator]

    with pytest.raises(HostError), name_lock(home, "tiny"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("below", [".", "tiny"])
def test_directory_of_another_user_is_rejected(home: Home, below: str) -> None:
    home.make_runs("tiny")
    os.chown(home.runs / below, 65534, 65534)

    with pytest.raises(HostError, match="owned by another user"), name_lock(home, "tiny"):
        pass


def test_run_directories_are_private(home: Home) -> None:
    home.runs.mkdir(parents=True)
    home.runs.chmod(0o777)
    before = os.umask(0)
    try:
        run = open_run(home, "tiny", load("cpu-tiny").plan)
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in (home.root, home.runs, run.path.parent, run.path)] == [
        0o755,
        0o700,
        0o700,
        0o700,
    ]


def test_lock_names_its_holder_and_survives_full_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        name_lock(home, "tiny"),
        pytest.raises(NameTakenError, match=rf"\(pid {os.getpid()}\)"),
        name_lock(home, "tiny"),
    ):
        pass

    def disk_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", disk_full)
    with name_lock(home, "tiny"):
        pass


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.write_text("[" * 100_000)])
def test_unreadable_run_files_count_as_missing(tmp_path: Path, make: object) -> None:
    make(tmp_path / "plan.json")  # type: ignore[operator]

    assert read_plan(RunDir(tmp_path)) is None
    assert RunDir(tmp_path).read("plan.json") == {}
