"""Test that an unexpected error yields a message and an exit code, never a traceback."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from orchestrator.cli.exit_codes import run_and_exit
from orchestrator.cli.main import main
from orchestrator.cli.up_result import show_up
from orchestrator.runtimes.base import Runtime, Unit
from orchestrator.servers.group import Server
from orchestrator.servers.start.request import UpResult


def deploy(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr("orchestrator.cli.exit_codes.signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["deploy", *argv])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return int(exit_info.value.code or 0)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp", "Upper", "two..dots", "end-", "a" * 64])
def test_invalid_server_name_is_rejected_before_writing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    for more in ((), ("--dry-run",)):
        assert deploy(monkeypatch, "up", "--profile", "cpu-tiny", "--name", name, *more) == 2
        assert f"`{name}` is not a valid server name" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "verb",
    [
        ("status", "NAME"),
        ("logs", "NAME"),
        ("ask", "NAME", "a prompt"),
        ("smoke", "NAME"),
        ("down", "NAME"),
        ("diagnose", "NAME"),
        ("bench", "NAME", "--workload", "smoke"),
        ("eval", "NAME", "--suite", "gsm8k"),
    ],
    ids=lambda verb: verb[0],
)
def test_commands_reject_a_path_as_server_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: tuple[str, ...]
) -> None:
    """`down ../../otherhome/runs/victim` once stopped a server of another home."""
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    path = "../../otherhome/runs/victim"
    assert deploy(monkeypatch, *(path if word == "NAME" else word for word in verb)) == 2
    expected = (
        f"no log file or server `{path}` found" if verb[0] == "diagnose" else f"`{path}` is not a valid server name"
    )
    assert expected in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def make_file(path: Path) -> None:
    path.write_text("")


def make_dangling_link(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("make", [make_file, make_dangling_link])
@pytest.mark.parametrize("below", [".", "deeper/home"])
@pytest.mark.parametrize("verb", [("status",), ("down", "--all"), ("up", "--profile", "cpu-tiny"), ("profiles",)])
def test_home_must_be_a_directory(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    make: Callable[[Path], None],
    below: str,
    verb: tuple[str, ...],
) -> None:
    make(tmp_path / "home")
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home" / below))
    assert deploy(monkeypatch, *verb) == 4
    stderr = capsys.readouterr().err
    assert f"`{tmp_path / 'home'}` is" in stderr
    assert "set DEPLOY_HOME" in stderr


def test_profile_file_name_must_be_valid_image_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "My Profile.yaml"
    path.write_text("hardware: cpu\n")
    assert deploy(monkeypatch, "show", str(path)) == 3
    assert "invalid profile name `My Profile`" in capsys.readouterr().err


def test_unexpected_full_disk_error_shows_the_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/deploy/kernels")

    monkeypatch.setattr("orchestrator.cli.main.app", full)
    assert deploy(monkeypatch) == 4
    stderr = capsys.readouterr().err
    assert "No space left on device" in stderr
    assert "/srv/deploy/kernels" in stderr


def test_missing_temporary_directory_error_lists_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    """Python's tempfile raises ENOENT if no directory is writable."""

    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    with pytest.raises(SystemExit) as exit_info:
        run_and_exit(fail)
    assert exit_info.value.code == 4
    stderr = capsys.readouterr().err
    assert "['/tmp', '/var/tmp']" in stderr
    assert "TMPDIR" in stderr


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_file_in_place_of_directory_is_host_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "models")
    monkeypatch.setattr("orchestrator.cli.main.app", lambda **_: (tmp_path / "models").mkdir(exist_ok=True))
    assert deploy(monkeypatch) == 4
    stderr = capsys.readouterr().err
    assert f"--> {tmp_path / 'models'}" in stderr
    assert "name a directory where you may write" in stderr


def test_internal_error_saves_traceback_to_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A file that the tool's own code did not find was once reported as "the machine is not ready", exit code 4."""

    def broken(**_: object) -> None:
        Path("/nowhere/of-ours").read_text()

    monkeypatch.setattr("orchestrator.cli.main.app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert deploy(monkeypatch) == 1
    stderr = capsys.readouterr().err
    assert "error: internal error: FileNotFoundError" in stderr
    assert "Traceback" not in stderr
    (log,) = tmp_path.iterdir()
    assert f"`{log}`" in stderr
    assert "of-ours" in log.read_text()


def test_internal_error_is_reported_without_writable_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(**_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("orchestrator.cli.main.app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert deploy(monkeypatch) == 1
    stderr = capsys.readouterr().err
    assert "error: internal error: KeyError: 'x'" in stderr
    assert "No such file or directory" in stderr


def test_up_prints_url_and_served_model(capsys: pytest.CaptureFixture[str]) -> None:
    unit = Unit(runtime="process", name="owl", profile="p", plan_digest="", url="http://h:1", run_dir="", runtime_id="")
    show_up(
        UpResult(server=Server.of(unit, cast("Runtime", None)), served_name="my-model", smoke=None, seconds=None),
        json=False,
    )
    assert capsys.readouterr().err == "`owl` is already up at http://h:1 (model `my-model`)\n"
