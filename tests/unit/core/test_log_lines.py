"""Test the incremental reading of a growing log."""

import os
import stat
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import HostError
from orchestrator.core.files import open_private
from orchestrator.core.logs import lines as log_lines
from orchestrator.core.logs import rotation
from orchestrator.core.logs.lines import Lines, LogTail, complete_lines, lines_containing
from orchestrator.core.logs.rotation import RotatingLog
from orchestrator.core.text import line_shapes

MakeLog = Callable[[int, int], RotatingLog]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def make_log(log: Path) -> Iterator[MakeLog]:
    """Return a function that creates a rotating log with this segment size and limit."""
    logs: list[RotatingLog] = []

    def make(segment_bytes: int, max_segments: int) -> RotatingLog:
        logs.append(RotatingLog(log, segment_bytes=segment_bytes, max_segments=max_segments))
        return logs[-1]

    yield make
    for created in logs:
        created.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_line_is_returned_once(log: Path) -> None:
    tail = LogTail(log)
    append(log, "one\ntwo\n")
    assert list(tail()) == ["one", "two"]
    assert list(tail()) == []
    append(log, "three\n")
    assert list(tail()) == ["three"]


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_socket, lambda path: path.symlink_to("/dev/zero")])
def test_log_must_be_a_regular_file(log: Path, make: Callable[[Path], None]) -> None:
    """`logs` once hung on a FIFO, and read the target of a link."""
    make(log)
    with pytest.raises(HostError, match="cannot read the log"):
        list(LogTail(log)())


def test_missing_log_has_no_lines_yet(log: Path) -> None:
    tail = LogTail(log)
    assert list(tail()) == []
    append(log, "one\n")
    assert list(tail()) == ["one"]


def test_incomplete_line_is_returned_only_when_complete(log: Path) -> None:
    tail = LogTail(log)
    append(log, "the server is fi")
    assert list(tail()) == []
    append(log, "red up\n")
    assert list(tail()) == ["the server is fired up"]


def test_final_incomplete_line_is_read(log: Path) -> None:
    append(log, "one\nKilled")
    assert list(LogTail(log).to_end()) == ["one", "Killed"]


def test_progress_bar_updates_become_separate_lines(log: Path) -> None:
    append(log, "shards: | 1/3 [\rshards: | 2/3 [\r\nnext\n")
    assert list(LogTail(log)()) == ["shards: | 1/3 [", "shards: | 2/3 [", "next"]


def test_truncated_log_is_read_from_the_start(log: Path) -> None:
    tail = LogTail(log)
    append(log, "a long first line\n")
    list(tail())
    log.write_text("new\n")
    assert list(tail()) == ["new"]


def test_replaced_log_is_read_from_the_start(log: Path) -> None:
    tail = LogTail(log)
    append(log, "old\n")
    list(tail())
    log.rename(log.with_suffix(".1"))
    append(log, "as long or longer\n")
    assert list(tail()) == ["as long or longer"]


def test_endless_line_is_split(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "CHUNK_BYTES", 1000)
    append(log, "x" * 200_000)
    parts = list(LogTail(log)())
    assert parts
    assert max(map(len, parts)) <= log_lines.MAX_PIECE_BYTES + 1000


def test_invalid_utf8_does_not_stop_reading(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\nnext\n")
    assert list(LogTail(log)())[-1] == "next"


def test_lines_are_reassembled_from_arbitrary_chunks() -> None:
    pieces = [b"one\ntw", b"o\r\nth", b"ree", b"\n\n", b"10%\r20%\r", b"\xc3", b"\xa4", b"\xc3\nend"]

    assert list(Lines(complete_lines(pieces))) == ["one", "two", "three", "10%", "20%", "\xe4\ufffd", "end"]


def test_endless_line_is_dropped_in_bounded_memory() -> None:
    pieces = (b"x" * 65536 for _ in range(40))

    lines = list(Lines(complete_lines(chain([b"first\n"], pieces, [b"y\nlast\n"]))))

    assert lines == ["first", "(a line of more than 1 MiB is left out)", "last"]


def test_lines_differing_only_in_digits_share_a_shape() -> None:
    log = "".join(f"[2026-07-02 10:14:{number % 60:02}] Decode batch, #token: {number}é\n" for number in range(1000))
    zeros = "[0000-00-00 00:00:00] Decode batch, #token: "
    assert {*line_shapes(log).decode().split("\n")} == {"", f"{zeros}0é", f"{zeros}00é", f"{zeros}000é"}
    assert line_shapes("a lone \udcff AND 1", lower=True) == b"a lone \xed\xb3\xbf and 0"


@given(st.lists(st.text("ab\n", max_size=5)))
def test_all_lines_containing_a_word_are_found(words: list[str]) -> None:
    text = "".join(words)
    assert [*lines_containing(b"ab", text.encode())] == [line.encode() for line in text.split("\n") if "ab" in line]


def test_rotated_log_is_read_completely(log: Path, make_log: MakeLog) -> None:
    """`server.log` once grew without limit."""
    writer, tail = make_log(40, 8), LogTail(log)
    lines = []
    for number in range(20):
        writer.write(f"line {number:02}\n".encode())
        if number % 3 == 0:  # read at times, across the border between two segments
            lines += tail()
    lines += tail.to_end()
    assert lines == list(LogTail(log).to_end()) == [f"line {number:02}" for number in range(20)]
    assert sorted(path.name for path in log.parent.iterdir()) == ["server.log", *(f"server.log.{n}" for n in (1, 2, 3))]
    assert log.stat().st_mode & 0o077 == 0


def test_log_limit_keeps_start_and_end(log: Path, make_log: MakeLog) -> None:
    writer, fast, slow = make_log(40, 4), LogTail(log), LogTail(log)
    writer.write(b"line 00\n")
    assert list(slow()) == ["line 00"]
    lines = []
    for number in range(1, 60):
        writer.write(f"line {number:02}\n".encode())
        lines += fast()
        assert sum(path.stat().st_size for path in log.parent.iterdir()) <= 4 * 40
    assert lines == [f"line {number:02}" for number in range(60)]
    remaining = list(LogTail(log).to_end())
    assert remaining == [*lines[:5], "(8 x 128 MiB of this log are not kept)", *lines[45:]]
    assert [*slow.to_end()] == remaining[1:]


def test_slow_reader_reports_skipped_log_segments(log: Path, make_log: MakeLog) -> None:
    writer, tail = make_log(40, 4), LogTail(log)
    for number in range(60):
        writer.write(f"line {number:02}\n".encode())
        if number in {0, 12}:
            lines = list(tail())
    assert lines[-1] == "line 12"
    assert [*tail.to_end()][:2] == ["(6 x 128 MiB of this log are not kept)", "line 45"]


def test_failed_rotation_leaves_log_unchanged(log: Path, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make_log(10, 4)
    writer.write(b"line 1\n")

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(rotation, "open_unbuffered", fail)
        with pytest.raises(OSError, match="No space"):
            writer.write(b"line 2\n")
    writer.write(b"line 3\n")
    assert list(LogTail(log).to_end()) == ["line 1", "line 3"]


def test_single_log_file_ignores_rotated_siblings(log: Path) -> None:
    """`logrotate` counts the other way: its `.1` is the newest."""
    append(log, "now\n")
    for number in (1, 3):
        log.with_name(f"server.log.{number}").write_text(f"before {number}\n")
    assert list(LogTail(log, single_file=True).to_end()) == ["now"]
    assert list(LogTail(log).to_end()) == ["before 1", "(1 x 128 MiB of this log are not kept)", "before 3", "now"]


def test_rotation_during_open_loses_no_lines(log: Path, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, tail = make_log(40, 8), LogTail(log)
    writer.write(b"line 00\n")
    assert list(tail()) == ["line 00"]
    writer.write(b"line 01\n")

    def open_and_rotate(path: Path) -> BinaryIO:
        if path == log and not path.with_name("server.log.1").exists():
            writer.write(b"x" * 39 + b"\n")
        return open_private(path)

    monkeypatch.setattr(log_lines, "open_private", open_and_rotate)
    assert list(tail()) == ["line 01", "x" * 39]
