"""Test private files and directories, and the file names in disk errors."""

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
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_private_directory_is_created_with_private_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is created public and restricted afterwards could be opened in between and kept open."""
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    folder = private_dir(tmp_path / "runs")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("has_name", [True, False])
def test_full_disk_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_name: bool) -> None:
    """The system's error about a write names no file, and `copytree` raises an error of another form."""
    full = OSError(errno.ENOSPC, "No space left on device", *([str(tmp_path / "new")] if has_name else []))

    def fail(*_: object, **__: object) -> None:
        raise full

    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/one").touch()
    packed = tmp_path / "packed.zip"
    with ZipFile(packed, "w") as archive:
        archive.writestr("one", "1")
    monkeypatch.setattr(ZipFile, "extractall", fail)
    monkeypatch.setattr(shutil, "copy2", fail)
    with ZipFile(packed) as archive, pytest.raises(OSError, match="No space left on device") as unpacked:
        unpack(archive, ["one"], tmp_path / "new")
    with pytest.raises(OSError, match="No space left on device") as copied:
        copy_tree(tmp_path / "tree", tmp_path / "new")
    assert unpacked.value.filename == str(tmp_path / "new")
    assert copied.value.filename == str(tmp_path / "new/one")


@pytest.mark.parametrize("open_file", [open_new, open_to_append, open_unbuffered])
def test_write_error_names_the_open_file(tmp_path: Path, open_file: Callable[[Path], IO[bytes]]) -> None:
    """Unbuffered files fail at the write, buffered files at the flush."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_file(tmp_path / "file") as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
        try:
            with pytest.raises(OSError, match="too large") as error:
                [(file.write(b"four"), file.flush()) for _ in range(2)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(error.value.filename) == str(tmp_path / "file")
