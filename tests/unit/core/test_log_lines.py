"""A growing log, read piece by piece."""

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
from orchestrator.core.logs.lines import Lines, LogTail, complete_lines, lines_containing
from orchestrator.core.logs.rotation import RotatingLog
from orchestrator.core.text import line_shapes

Bounded = Callable[[int, int], RotatingLog]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def bounded(log: Path) -> Iterator[Bounded]:
    """Make a log of pieces of so many bytes, so many at most."""
    made: list[RotatingLog] = []

    def make(piece: int, most: int) -> RotatingLog:
        made.append(RotatingLog(log, private, segment_bytes=piece, max_segments=most))
        return made[-1]

    yield make
    for tail in made:
        tail.close()


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


def a_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, a_socket, lambda path: path.symlink_to("/dev/zero")])
def test_log_must_be_a_regular_file(log: Path, make: Callable[[Path], None]) -> None:
    """`logs` hung on a FIFO, and read what a link named."""
    make(log)
    with pytest.raises(HostError, match="cannot read the log"):
        list(LogTail(log)())


def test_missing_log_has_no_lines_yet(log: Path) -> None:
    tail = LogTail(log)
    assert list(tail()) == []
    append(log, "one\n")
    assert list(tail()) == ["one"]


def test_incomplete_line_is_held_until_its_end(log: Path) -> None:
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
    pieces = list(LogTail(log)())
    assert pieces
    assert max(map(len, pieces)) <= log_lines.MAX_LINE_BYTES + 1000


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


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def test_rotated_log_is_read_completely(log: Path, bounded: Bounded) -> None:
    """`server.log` grew without end."""
    written, tail = bounded(40, 8), LogTail(log)
    seen = []
    for number in range(20):
        written.write(f"line {number:02}\n".encode())
        if number % 3 == 0:  # now and then, over the border between two pieces
            seen += tail()
    seen += tail.to_end()
    assert seen == list(LogTail(log).to_end()) == [f"line {number:02}" for number in range(20)]
    assert sorted(path.name for path in log.parent.iterdir()) == ["server.log", *(f"server.log.{n}" for n in (1, 2, 3))]
    assert log.stat().st_mode & 0o077 == 0


def test_log_limit_keeps_start_and_end(log: Path, bounded: Bounded) -> None:
    written, ahead, lagging = bounded(40, 4), LogTail(log), LogTail(log)
    written.write(b"line 00\n")
    assert list(lagging()) == ["line 00"]
    seen = []
    for number in range(1, 60):
        written.write(f"line {number:02}\n".encode())
        seen += ahead()
        assert sum(path.stat().st_size for path in log.parent.iterdir()) <= 4 * 40
    assert seen == [f"line {number:02}" for number in range(60)]
    whole = list(LogTail(log).to_end())
    assert whole == [*seen[:5], "(8 x 128 MiB of this log are not kept)", *seen[45:]]
    assert [*lagging.to_end()] == whole[1:]


def test_slow_reader_reports_skipped_log_segments(log: Path, bounded: Bounded) -> None:
    written, tail = bounded(40, 4), LogTail(log)
    for number in range(60):
        written.write(f"line {number:02}\n".encode())
        if number in {0, 12}:
            seen = list(tail())
    assert seen[-1] == "line 12"
    assert [*tail.to_end()][:2] == ["(6 x 128 MiB of this log are not kept)", "line 45"]


def test_failed_rotation_leaves_log_unchanged(log: Path, bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    written = bounded(10, 4)
    written.write(b"line 1\n")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written, "_opener", full)
    with pytest.raises(OSError, match="No space"):
        written.write(b"line 2\n")
    monkeypatch.setattr(written, "_opener", private)
    written.write(b"line 3\n")
    assert list(LogTail(log).to_end()) == ["line 1", "line 3"]


def test_foreign_log_ignores_rotated_siblings(log: Path) -> None:
    """`logrotate` counts the other way round: its `.1` is the youngest."""
    append(log, "now\n")
    for number in (1, 3):
        log.with_name(f"server.log.{number}").write_text(f"before {number}\n")
    assert list(LogTail(log, single_file=True).to_end()) == ["now"]
    assert list(LogTail(log).to_end()) == ["before 1", "(1 x 128 MiB of this log are not kept)", "before 3", "now"]


def test_rotation_during_open_loses_no_lines(log: Path, bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    written, tail = bounded(40, 8), LogTail(log)
    written.write(b"line 00\n")
    assert list(tail()) == ["line 00"]
    written.write(b"line 01\n")

    def turned_meanwhile(path: Path) -> BinaryIO:
        if path == log and not path.with_name("server.log.1").exists():
            written.write(b"x" * 39 + b"\n")
        return open_private(path)

    monkeypatch.setattr(log_lines, "open_private", turned_meanwhile)
    assert list(tail()) == ["line 01", "x" * 39]
