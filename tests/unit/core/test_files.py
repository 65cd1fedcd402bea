"""Folders and files that are this user's alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.files import private_folder


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_a_private_folder_is_private_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not made for everybody and closed afterwards: in between somebody could open it, and would keep it open."""
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    folder = private_folder(tmp_path / "runs")
    assert folder.stat().st_mode & 0o777 == 0o700
