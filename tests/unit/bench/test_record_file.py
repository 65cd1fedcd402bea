"""Test the temporary file with the measured requests of a load."""

import tempfile
import tracemalloc
from array import array
from pathlib import Path

import pytest

from orchestrator.bench.record_file import RecordFile, RequestRecord


def record(index: int, chunks: int = 3, **changes: object) -> RequestRecord:
    times = array("d", [index + chunk / 8 for chunk in range(chunks)])
    result = RequestRecord(
        index=index, scheduled_s=float(index), started_s=index + 0.5, ended_s=index + 9.0, chunk_s=times,
        chunk_tokens=array("i", range(1, chunks + 1)), prompt_tokens=100, output_tokens=chunks, cached_tokens=None,
        finish_reason="length", failure=None, failure_example="", session=f"session \ud800 {index}", position=1,
        is_subagent=True,
    )  # fmt: skip
    return result._replace(**changes)  # type: ignore[arg-type]


def test_records_are_read_back_in_completion_order() -> None:
    added = [
        record(4, chunk_tokens=array("i", [2, 5, 6])),
        record(0),
        record(2, chunks=0, failure="reset", failure_example="peer closed"),
        record(3, chunk_tokens=array("i")),
    ]
    records = RecordFile()
    for item in added:
        records.add(item)
    assert len(records) == 4
    assert list(records) == list(records) == added
    assert added[0] in records
    assert record(5) not in records


def test_memory_use_does_not_grow_with_records() -> None:
    records, first = RecordFile(), record(0, chunks=20)
    for index in range(3_000):  # Python keeps up to 2,000 tuples for reuse
        records.add(first._replace(index=index))
    tracemalloc.start()
    try:
        for index in range(3_000, 20_000):
            records.add(first._replace(index=index))
        assert tracemalloc.get_traced_memory()[0] < 4_000
    finally:
        tracemalloc.stop()
    assert [chunk.index for chunk in records] == [*range(20_000)]


def test_only_small_records_are_listed() -> None:
    records = RecordFile()
    records.add(record(0))
    assert records.listed() == [record(0)]
    records.add(record(1, chunks=400_000))  # 4.8 MB
    assert records.listed() is records


def test_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    with pytest.raises(OSError, match="No such file"):
        RecordFile().add(record(0))
