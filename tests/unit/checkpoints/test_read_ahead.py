"""A checkpoint is read into the page cache, as far as it fits."""

import threading
from pathlib import Path

import pytest

from orchestrator.checkpoints import read_ahead as module
from orchestrator.checkpoints.read_ahead import read_ahead

SIZE = 3 << 20


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(SIZE))
    (tmp_path / "notes.bin").write_bytes(bytes(SIZE))
    return tmp_path


def bytes_read(directory: Path) -> int:
    """By the thread that reads ahead."""
    before = own_bytes()
    read_ahead(directory).join()
    return own_bytes() - before


def own_bytes() -> int:
    """By all threads of this process, files of the kernel included."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_the_weights_are_read_and_nothing_else(checkpoint: Path) -> None:
    assert 3 * SIZE <= bytes_read(checkpoint) < 3.5 * SIZE


def test_no_more_is_read_than_fits(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 2 * SIZE + 1)
    assert 2 * SIZE <= bytes_read(checkpoint) < 2.5 * SIZE


def test_a_missing_directory_and_an_unreadable_file_are_left_to_the_engine(checkpoint: Path) -> None:
    read_ahead(checkpoint / "missing").join()
    (checkpoint / "model-0.safetensors").unlink()
    (checkpoint / "model-0.safetensors").mkdir()
    assert 2 * SIZE <= bytes_read(checkpoint) < 2.5 * SIZE


def test_it_does_not_keep_a_command_from_ending(checkpoint: Path) -> None:
    thread = read_ahead(checkpoint)
    assert isinstance(thread, threading.Thread)
    assert thread.daemon
    thread.join()
