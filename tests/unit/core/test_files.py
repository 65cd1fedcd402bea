"""Folders and files that are this user's alone."""

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import pytest

from orchestrator.core.files import (
    copy_tree,
    open_new,
    open_to_append,
    open_unbuffered,
    private_dir,
    unpack,
)


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_private_directory_is_created_with_private_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not made for everybody and closed afterwards: in between somebody could open it, and would keep it open."""
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    folder = private_dir(tmp_path / "runs")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("names_it", [True, False])
def test_full_disk_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_it: bool) -> None:
    """A write that fails names no file, and a tree that is copied raises an error of another form."""
    full = OSError(errno.ENOSPC, "No space left on device", *([str(tmp_path / "new")] if names_it else []))

    def fails(*_: object, **__: object) -> None:
        raise full

    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/one").touch()
    packed = tmp_path / "packed.zip"
    with ZipFile(packed, "w") as archive:
        archive.writestr("one", "1")
    monkeypatch.setattr(ZipFile, "extractall", fails)
    monkeypatch.setattr(shutil, "copy2", fails)
    with ZipFile(packed) as archive, pytest.raises(OSError, match="No space left on device") as unpacked:
        unpack(archive, ["one"], tmp_path / "new")
    with pytest.raises(OSError, match="No space left on device") as copied:
        copy_tree(tmp_path / "tree", tmp_path / "new")
    assert unpacked.value.filename == str(tmp_path / "new")
    assert copied.value.filename == str(tmp_path / "new/one")


@pytest.mark.parametrize("open_file", [open_new, open_to_append, lambda path: open_unbuffered(path, os.open)])
def test_write_error_names_the_open_file(tmp_path: Path, open_file: Callable[[Path], IO[bytes]]) -> None:
    """Whether a write reaches the disk at once, or when what was gathered is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_file(tmp_path / "file") as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
        try:
            with pytest.raises(OSError, match="too large") as raised:
                [(file.write(b"four"), file.flush()) for _ in range(2)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(raised.value.filename) == str(tmp_path / "file")
