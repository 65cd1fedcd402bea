"""The measured requests of a load in a temporary file."""

import os
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from orchestrator.bench.record_file import RecordFile, RequestRecord


def record(index: int, chunks: int = 3, **changes: object) -> RequestRecord:
    times = [index + each / 8 for each in range(chunks)]
    made = RequestRecord(
        index=index, scheduled_s=float(index), started_s=index + 0.5, ended_s=index + 9.0, chunk_s=times,
        chunk_tokens=list(range(1, chunks + 1)), prompt_tokens=100, output_tokens=chunks, cached_tokens=None,
        finish_reason="length", failure=None, failure_example="", session=f"session \ud800 {index}", position=1,
        is_subagent=True,
    )  # fmt: skip
    return made._replace(**changes)  # type: ignore[arg-type]


def lists(records: RecordFile) -> list[RequestRecord]:
    """The requests with lists as they were added."""
    return [each._replace(chunk_s=list(each.chunk_s), chunk_tokens=list(each.chunk_tokens)) for each in records]


def test_requests_are_read_again_in_the_order_of_sending() -> None:
    added = [
        record(4, chunk_tokens=[2, 5, 6]),
        record(0),
        record(2, chunks=0, chunk_tokens=[], failure="reset", failure_example="peer closed"),
        record(3, chunk_tokens=[]),
    ]
    records = RecordFile()
    for each in added:
        records.add(each)
    assert len(records) == 4
    assert lists(records) == lists(records) == [added[1], added[2], added[3], added[0]]
    assert added[0] not in RecordFile()


def test_memory_does_not_grow_with_the_requests_nor_their_length() -> None:
    records, first = RecordFile(), record(0, chunks=20)
    records.add(first)
    tracemalloc.start()
    try:
        for index in range(1, 10_001):
            records.add(first._replace(index=index))
        assert tracemalloc.get_traced_memory()[0] < 64 * len(records)  # Python keeps 2,000 free tuples, 160 bytes each
    finally:
        tracemalloc.stop()
    assert lists(records)[10_000] == first._replace(index=10_000)


def test_a_full_disk_or_no_directory_keeps_requests_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_descriptor: int, content: bytes, _offset: int) -> int:
        return len(content) - 1

    records = RecordFile()
    records.add(record(0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        records.add(record(1))
    records.add(record(2))
    assert lists(records) == [record(0), record(1), record(2)]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    homeless = RecordFile()
    homeless.add(record(0))
    assert lists(homeless) == [record(0)]
