"""Test the temporary file with the measured requests of a load."""

import gc
import sys
import tempfile
import tracemalloc
from array import array
from pathlib import Path

import pytest

from orchestrator.bench import record_file
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


@pytest.mark.parametrize("newest", [0, 2, 4])
def test_records_are_read_back_in_completion_order(monkeypatch: pytest.MonkeyPatch, newest: int) -> None:
    added = [
        record(4, chunk_tokens=array("i", [2, 5, 6])),
        record(0),
        record(2, chunks=0, failure="reset", failure_example="peer closed"),
        record(3, chunk_tokens=array("i")),
    ]
    monkeypatch.setattr(record_file, "_MAX_NEWEST", newest)
    records = RecordFile()
    for item in added:
        records.add(item)
    assert len(records) == 4
    assert list(records) == list(records) == added
    assert added[0] in records
    assert record(5) not in records


@pytest.mark.parametrize(("chunks", "requests"), [(20, 5_000), (1_000, 500)])
def test_memory_use_does_not_grow_with_records(chunks: int, requests: int) -> None:
    records, first, sizes = RecordFile(), record(0, chunks=chunks), []
    tracemalloc.start()
    try:
        for index in range(3 * requests):
            item = first._replace(index=index, chunk_s=first.chunk_s[:], chunk_tokens=first.chunk_tokens[:])
            records.add(item)
            if (index + 1) % requests == 0:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[0] < 8_000_000
    assert sizes[2] == pytest.approx(sizes[1], rel=0.01)
    assert [item.index for item in records] == [*range(3 * requests)]


def test_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    monkeypatch.setattr(record_file, "_MAX_NEWEST", 0)
    with pytest.raises(OSError, match="No such file"):
        RecordFile().add(record(0))


def test_file_on_full_disk_is_closed_without_second_error(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("w+b"))  # noqa: SIM115
    monkeypatch.setattr(record_file, "_MAX_NEWEST", 0)
    records = RecordFile()
    with pytest.raises(OSError, match="No space left"):
        records.add(record(0))
    del records
    gc.collect()
    assert unraisable == []
