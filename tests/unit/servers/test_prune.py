"""`deploy prune`: old runs are removed; runs of running servers and runs needed later are kept."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from run_samples import past_run, write_process

from orchestrator.core.errors import HostError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.runs.run_dir import RunDir, name_lock, runs_of
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.servers import prune as command
from orchestrator.servers.exit_record import RESTARTS_FILE
from orchestrator.servers.prune import OldRun, parse_older_than, prune
from orchestrator.servers.servers import Servers


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def prune_runs(
    home: Home, *, keep: int = 1, day: int = 20, dry_run: bool = False, name: str | None = None
) -> list[OldRun]:
    servers = Servers(home, {"process": ProcessRuntime(home)})
    return list(prune(servers, name, keep=keep, since=datetime(2026, 7, day, tzinfo=UTC), dry_run=dry_run))


def days(home: Home, name: str = "owl") -> list[int]:
    return [int(run.path.name[6:8]) for run in runs_of(home, name)]


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_size) for path in root.rglob("*") if ".lock" not in path.name
    }


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("30d", "2026-10-23T14:30:00+01:00"),
        ("12h", "2026-11-22T02:30:00+01:00"),
        ("2026-11-21", "2026-11-21T00:00:00+01:00"),
        ("2026-11-21T14:05:06Z", "2026-11-21T14:05:06+00:00"),
    ],
)
def test_age_or_date_is_accepted(text: str, date: str) -> None:
    now = datetime(2026, 11, 22, 14, 30, tzinfo=timezone(timedelta(hours=1)))
    assert parse_older_than(text, now).isoformat() == date


@pytest.mark.parametrize("text", ["", "5", "d", "yesterday", "-5d"])
def test_invalid_age_is_rejected_with_example(text: str) -> None:
    with pytest.raises(UsageError, match="is neither a date nor an age") as caught:
        parse_older_than(text, datetime.now(UTC))
    assert "30d" in caught.value.hint


def test_old_runs_are_removed_by_count_and_age(home: Home) -> None:
    runs = [past_run(home, day) for day in (1, 2, 3, 4, 5)]
    size = sum(path.stat().st_size for path in runs[0].path.iterdir())
    before = tree(home.root)

    assert prune_runs(home, keep=5) == []
    assert prune_runs(home, day=1) == []
    assert [
        (Path(old.run_dir), old.bytes, old.keep_reason) for old in prune_runs(home, keep=3, day=2, dry_run=True)
    ] == [(runs[0].path, size, "")]
    assert tree(home.root) == before
    assert [Path(old.run_dir) for old in prune_runs(home, keep=3)] == [runs[1].path, runs[0].path]
    assert days(home) == [5, 4, 3]


def test_restarted_run_is_removed_like_others(home: Home) -> None:
    past_run(home, 1).save(RESTARTS_FILE, {"restarts": [{"at": "2026-07-01T00:10:00+00:00", "reason": "killed"}]})
    past_run(home, 2)
    assert [old.keep_reason for old in prune_runs(home)] == [""]
    assert days(home) == [2]


def test_runs_needed_by_restart_and_rollback_are_kept(home: Home) -> None:
    """The first plan passed its smoke test, the second failed it, and the third has no smoke test."""
    for day in (1, 2):
        past_run(home, day, "server.port=1")
    past_run(home, 3, "server.port=2", verified=False)
    for day in (4, 5, 6):
        past_run(home, day, "server.port=3", verified=None)

    keep_reason = {Path(old.run_dir).name[6:8]: old.keep_reason for old in prune_runs(home)}

    assert days(home) == [6, 3, 2]
    assert keep_reason == {
        "05": "",
        "04": "",
        "03": "`deploy restart` uses it",
        "02": "the last run that passed its smoke test",
        "01": "",
    }


def test_last_known_good_run_is_kept_regardless_of_age(home: Home) -> None:
    past_run(home, 1, "server.port=1")
    for day in (2, 3, 4):
        past_run(home, day, "server.port=2")
    prune_runs(home)
    assert days(home) == [4, 1]


def test_run_of_running_server_is_kept(home: Home) -> None:
    past_run(home, 1, running=True)
    past_run(home, 2)
    past_run(home, 3)
    old_runs = prune_runs(home)
    assert [old.keep_reason for old in old_runs] == ["", "`deploy status` still lists its server"]
    assert days(home) == [3, 1]


def garbage(run: RunDir) -> None:
    (run.path / "process.json").write_text("{")


def forged(run: RunDir) -> None:
    record = write_process(run, running=False)
    record.write_text(record.read_text().replace('"owl"', '"hen"'))


def fifo_record(run: RunDir) -> None:
    (run.path / "process.json").unlink()
    os.mkfifo(run.path / "process.json")


def no_exit_record(run: RunDir) -> None:
    (run.path / "process.json").unlink()


def damaged_plan(run: RunDir) -> None:
    no_exit_record(run)
    (run.path / "plan.json").write_text("{")


def owned_by_another_user(run: RunDir) -> None:
    os.chown(run.path, 12345, 12345)


DAMAGES: list[Callable[[RunDir], None]] = [
    *(garbage, forged, fifo_record, no_exit_record, damaged_plan, owned_by_another_user)
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", DAMAGES, ids=lambda make: make.__name__)
def test_unreadable_or_forged_runs_are_kept(
    home: Home, make: Callable[[RunDir], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "another_user" in make.__name__ and os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    monkeypatch.chdir("/")
    damaged = past_run(home, 1)
    make(damaged)
    past_run(home, 2)
    past_run(home, 3)
    before = {path: stat for path, stat in tree(home.root.parent).items() if "20260702" not in path}

    reasons = {Path(old.run_dir): old.keep_reason for old in prune_runs(home)}

    assert reasons.pop(damaged.path), "a reason is given"
    assert list(reasons.values()) == [""], "the other run is removed"
    assert tree(home.root.parent) == before


def test_symlinked_runs_are_not_followed(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "theirs")
    theirs = [past_run(other, day) for day in (1, 2, 3)]
    home.make_runs("mine")
    (home.runs / "owl").symlink_to(other.runs / "owl")
    (home.runs / "mine" / theirs[0].path.name).symlink_to(theirs[0].path)
    past_run(home, 3, name="mine")
    before = tree(tmp_path)
    assert prune_runs(home) == []
    with pytest.raises(StartError, match="no previous run of `owl`"):
        prune_runs(home, name="owl")
    assert tree(tmp_path) == before


def test_other_directories_are_not_runs(home: Home) -> None:
    for name in ("my-notes", "20260701T000000Z-xyz", "20260701T000000Z-00000000.bak", "20260701T000000Z-0000000"):
        (home.make_runs("owl") / name).mkdir()
    past_run(home, 3)
    assert prune_runs(home) == []
    assert len(runs_of(home, "owl")) == 5


def test_locked_name_is_skipped_but_others_are_pruned(home: Home) -> None:
    for name in ("hen", "owl"):
        for day in (1, 2):
            past_run(home, day, name=name)
    with name_lock(home, "hen"), pytest.raises(HostError, match="cannot remove all old runs") as caught:
        prune_runs(home)
    assert "working on `hen`" in caught.value.problems[0].message
    assert (days(home, "hen"), days(home, "owl")) == ([2, 1], [2])


def test_removed_run_does_not_follow_symlinks(home: Home, tmp_path: Path) -> None:
    run = past_run(home, 1)
    past_run(home, 2)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    (run.path / "link").symlink_to(tmp_path / "outside")
    (run.path / "server.log.1").symlink_to(tmp_path / "outside" / "precious")
    os.mkfifo(run.path / "a.fifo")
    (run.path / "notes").mkdir()
    (run.path / "notes" / "mine.txt").write_text("why it was slow")

    assert [old.keep_reason for old in prune_runs(home)] == [""]

    assert days(home) == [2]
    assert (tmp_path / "outside" / "precious").read_text() == "x"


def test_interrupted_removal_is_finished_next_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    past_run(home, 1)
    past_run(home, 2)

    def interrupt(_path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "remove_tree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prune_runs(home)
    leftovers = [path.name for path in (home.runs / "owl").iterdir() if "20260701" in path.name]

    assert len(leftovers) == 1
    assert days(home) == [2], "a partly removed run is not a run"
    assert prune_runs(home, dry_run=True) == []
    assert (home.runs / "owl" / leftovers[0]).exists()
    assert prune_runs(home) == []
    assert not (home.runs / "owl" / leftovers[0]).exists()


class Docker:
    """A daemon with at most one server, or an unreachable one."""

    def __init__(self, *, answers: bool, lists: Path | None = None) -> None:
        self.answers, self.lists = answers, lists

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        if not self.answers:
            raise HostError("the daemon does not answer")
        fields = {"profile": "", "plan_digest": "", "url": "", "runtime_id": "1"}
        server = Unit(runtime="docker", name=name or "", run_dir=str(self.lists), **fields)
        return (server,) if self.lists else ()


@pytest.mark.parametrize(
    ("answers", "ended", "listed", "keep_reason"),
    [
        (True, "exit.json", False, ""),
        (True, "server.log", False, ""),
        (True, "", False, "its server may still be running"),
        (False, "exit.json", False, "cannot query docker for its server"),
        (True, "exit.json", True, "`deploy status` still lists its server"),
    ],
)
def test_container_run_is_removed_only_when_known_ended(
    home: Home, answers: bool, ended: str, listed: bool, keep_reason: str
) -> None:
    """The container may be on a remote host that no command names, or may have been restarted manually."""
    for day in (1, 2):
        run = past_run(home, day, "runtime=docker", "engine.image=x")
        for file in ("process.json", "server.log"):
            (run.path / file).unlink()
    run = runs_of(home, "owl")[1]
    if ended:
        run.save(ended, {"how": "stopped"})
    docker = Docker(answers=answers, lists=run.path if listed else None)
    servers = Servers(home, {"docker": docker, "process": ProcessRuntime(home)})  # type: ignore[dict-item]
    [old] = prune(servers, None, keep=1, since=datetime(2026, 7, 20, tzinfo=UTC))
    assert old.keep_reason == keep_reason
    assert run.path.exists() == bool(keep_reason)


def test_unknown_name_is_rejected(home: Home) -> None:
    past_run(home, 1)
    with pytest.raises(StartError, match="no previous run of `owls`"):
        prune_runs(home, name="owls")
