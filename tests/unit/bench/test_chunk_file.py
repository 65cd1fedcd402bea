"""The times of chunks in a temporary file."""

import os
import tempfile
import tracemalloc
from array import array
from pathlib import Path

import pytest

from orchestrator.bench.chunk_file import ChunkFile


def test_values_are_read_again() -> None:
    file = ChunkFile()
    times, counts = file.save(array("d", [0.5, 1.5, 2.5])), file.save(array("l", [2, 3]))
    assert (list(times), times[0], times[-1], times[1:], len(times)) == (
        [0.5, 1.5, 2.5], 0.5, 2.5, array("d", [1.5, 2.5]), 3,
    )  # fmt: skip
    assert list(counts) == [2, 3]
    assert not isinstance(times, array)
    assert list(file.save(array("d"))) == []


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    file = ChunkFile()
    file.save(array("d", [0.0]))
    tracemalloc.start()
    try:
        kept = [file.save(array("d", range(1000))) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 300 * len(kept)  # 8,000 bytes each in memory
    finally:
        tracemalloc.stop()
    assert all(list(each) == list(range(1000)) for each in kept)


def test_a_full_disk_or_no_directory_keeps_the_values_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_descriptor: int, content: bytes, _offset: int) -> int:
        return len(content) - 1

    file = ChunkFile()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        kept = file.save(array("d", [1.0]))
    assert isinstance(kept, array)
    assert list(file.save(array("d", [2.0]))) == [2.0]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    assert isinstance(ChunkFile().save(array("d", [1.0])), array)
