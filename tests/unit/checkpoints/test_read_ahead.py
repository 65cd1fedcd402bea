"""A checkpoint is read into the page cache, as far as it fits."""

import os
from pathlib import Path

import pytest

from orchestrator.checkpoints.read_ahead import read_ahead

SIZE = 3 << 20


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(SIZE))
    (tmp_path / "notes.bin").write_bytes(bytes(SIZE))
    return tmp_path


def bytes_read(directory: Path, room: int = 1 << 30) -> int:
    """By the thread that reads ahead."""
    before = own_bytes()
    with read_ahead(directory, room) as thread:
        thread.join()
    return own_bytes() - before


def own_bytes() -> int:
    """By all threads of this process, files of the kernel included."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_the_weights_are_read_and_nothing_else(checkpoint: Path) -> None:
    assert 3 * SIZE <= bytes_read(checkpoint) < 3.5 * SIZE


def test_no_more_is_read_than_fits(checkpoint: Path) -> None:
    assert 2 * SIZE <= bytes_read(checkpoint, 2 * SIZE + 1) < 2.5 * SIZE


def test_a_missing_directory_and_an_unreadable_file_are_left_to_the_engine(checkpoint: Path) -> None:
    assert bytes_read(checkpoint / "missing") < SIZE
    (checkpoint / "model-0.safetensors").unlink()
    (checkpoint / "model-0.safetensors").mkdir()
    assert 2 * SIZE <= bytes_read(checkpoint) < 2.5 * SIZE


def test_it_does_not_keep_a_command_from_ending(checkpoint: Path) -> None:
    with read_ahead(checkpoint, 1 << 30) as thread:
        assert thread.daemon
        thread.join()


def test_it_ends_with_the_start(checkpoint: Path) -> None:
    """A failed start of a large checkpoint would read for minutes beside the next one."""
    os.mkfifo(first := checkpoint / "model--.safetensors")  # opened when there is a writer
    before = own_bytes()
    with read_ahead(checkpoint, 1 << 30) as thread:
        pass
    os.close(os.open(first, os.O_WRONLY))
    thread.join()
    assert own_bytes() - before < SIZE
