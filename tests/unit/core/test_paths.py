"""Test which directories may be the tool's home."""

import os
from pathlib import Path

import pytest

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home


def home(root: object) -> Home:
    return Home.from_environment({"DEPLOY_HOME": str(root)})


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o702])
def test_home_writable_by_others_is_rejected(tmp_path: Path, mode: int) -> None:
    """Another user could otherwise add a profile or template that the owner starts."""
    tmp_path.chmod(mode)
    with pytest.raises(HostError, match="other users can write to") as caught:
        home(tmp_path)
    assert f"`chmod -R go-w {tmp_path}`" in caught.value.hint

    tmp_path.chmod(mode & ~0o022)
    assert home(tmp_path).root == tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_home_of_another_user_is_rejected(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(HostError, match="belongs to another user"):
        home(tmp_path)


@pytest.mark.parametrize("root", ["~nobody-of-that-name/deploy"])
def test_home_of_unknown_user_is_rejected(root: str) -> None:
    with pytest.raises(HostError, match="no home directory found for `~nobody-of-that-name/deploy`"):
        home(root)


def test_relative_home_is_below_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert home("a/b").root == tmp_path / "a/b"
    assert home("a b\nc").root == tmp_path / "a b\nc"


def test_run_directory_must_be_inside_the_home(tmp_path: Path) -> None:
    (tmp_path / "home/runs/a/1").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home/runs/a/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "other").symlink_to(tmp_path / "home")
    holds = home(tmp_path / "home").holds
    assert holds(tmp_path / "home/runs/a/1", "a")
    assert holds(tmp_path / "other/runs/a/1", "a")
    assert not holds(tmp_path / "home/runs/a/1", "b")
    for other in ("elsewhere", "home/runs/a/link", "home/runs/../../elsewhere", "home/runs/a/2", "home"):
        assert not holds(tmp_path / other, "a")
