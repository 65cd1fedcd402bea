"""Test locks between processes."""

import errno
import fcntl
import io
import os
from pathlib import Path

import pytest

from orchestrator.core import locks
from orchestrator.core.console import Progress
from orchestrator.core.locks import LockHeldError, file_lock, hold, is_held


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / ".lock"


def test_lock_has_one_named_holder(lock: Path) -> None:
    with hold(lock), pytest.raises(LockHeldError) as error:
        hold(lock)
    assert error.value.holder == str(os.getpid())
    with hold(lock):
        pass


def test_inherited_descriptor_keeps_lock_held(lock: Path) -> None:
    with hold(lock) as file:
        copy = os.dup(file.fileno())
    assert is_held(lock)
    os.close(copy)
    assert not is_held(lock)


def test_checking_a_lock_neither_creates_nor_blocks_it(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_held(lock)
    assert not lock.exists()
    lock.touch()
    descriptor = os.open(lock, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as `is_held` does briefly
    monkeypatch.setattr(locks.time, "sleep", lambda _: fcntl.flock(descriptor, fcntl.LOCK_UN))
    with hold(lock):
        assert is_held(lock)
    os.close(descriptor)


def test_waiting_for_a_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    lock = tmp_path / "new" / ".glm.lock"
    with file_lock(lock, Progress(output)):
        assert output.getvalue() == ""
    other = os.open(lock, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    progress = Progress(output)

    def report_and_release(text: str) -> None:
        Progress(output).update(text)
        os.close(other)

    monkeypatch.setattr(progress, "update", report_and_release)
    with file_lock(lock, progress):
        assert output.getvalue() == "waiting for another command that makes `glm`\n"


def test_existing_lock_works_on_read_only_disk(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.write_text("123       ")
    os_open = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return os_open(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with hold(lock), pytest.raises(LockHeldError, match="pid 123"):
        hold(lock)
