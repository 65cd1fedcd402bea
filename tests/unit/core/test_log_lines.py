"""A growing log, read piece by piece."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import log_lines
from orchestrator.core.errors import HostError
from orchestrator.core.log_lines import LONGEST_LINE, LogTail, holding, split_lines, whole_lines
from orchestrator.core.text import alike


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_line_is_given_once(log: Path) -> None:
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
def test_a_log_that_is_no_file_is_an_error_at_once(log: Path, make: Callable[[Path], None]) -> None:
    """`logs` hung on a FIFO, and read what a link named."""
    make(log)
    with pytest.raises(HostError, match="cannot be read"):
        list(LogTail(log)())


def test_a_log_that_is_not_there_yet_has_no_lines(log: Path) -> None:
    tail = LogTail(log)
    assert list(tail()) == []
    append(log, "one\n")
    assert list(tail()) == ["one"]


def test_an_unfinished_line_waits_for_its_end(log: Path) -> None:
    tail = LogTail(log)
    append(log, "the server is fi")
    assert list(tail()) == []
    append(log, "red up\n")
    assert list(tail()) == ["the server is fired up"]


def test_of_a_log_that_has_ended_the_unfinished_line_is_read_too(log: Path) -> None:
    append(log, "one\nKilled")
    assert list(LogTail(log).to_end()) == ["one", "Killed"]


def test_a_progress_bar_is_a_line_at_each_state(log: Path) -> None:
    append(log, "shards: | 1/3 [\rshards: | 2/3 [\r\nnext\n")
    assert list(LogTail(log)()) == ["shards: | 1/3 [", "shards: | 2/3 [", "next"]


def test_a_truncated_log_is_read_from_its_beginning(log: Path) -> None:
    tail = LogTail(log)
    append(log, "a long first line\n")
    list(tail())
    log.write_text("new\n")
    assert list(tail()) == ["new"]


def test_a_replaced_log_is_read_from_its_beginning(log: Path) -> None:
    tail = LogTail(log)
    append(log, "old\n")
    list(tail())
    log.rename(log.with_suffix(".1"))
    append(log, "as long or longer\n")
    assert list(tail()) == ["as long or longer"]


def test_a_line_without_end_is_cut(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "CHUNK_BYTES", 1000)
    append(log, "x" * 200_000)
    pieces = list(LogTail(log)())
    assert pieces
    assert max(map(len, pieces)) <= log_lines.MAX_LINE_BYTES + 1000


def test_bytes_that_are_no_text_do_not_stop_the_reading(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\nnext\n")
    assert list(LogTail(log)())[-1] == "next"


def test_lines_are_whole_wherever_the_pieces_are_cut() -> None:
    pieces = [b"one\ntw", b"o\r\nth", b"ree", b"\n\n", b"10%\r20%\r", b"end"]

    assert list(split_lines(whole_lines(pieces))) == ["one", "two", "three", "10%", "20%", "end"]


def test_line_without_end_is_cut_before_it_fills_the_memory() -> None:
    pieces = (b"x" * 65536 for _ in range(40))

    lines = list(split_lines(whole_lines(pieces)))

    assert sum(map(len, lines)) == 40 * 65536
    assert max(map(len, lines)) <= LONGEST_LINE + 65536


def test_lines_that_differ_in_digits_only_are_alike() -> None:
    log = "".join(f"[2026-07-02 10:14:{number % 60:02}] Decode batch, #token: {number}é\n" for number in range(1000))
    zeros = "[0000-00-00 00:00:00] Decode batch, #token: "
    assert {*alike(log).split("\n")} == {"", f"{zeros}0é", f"{zeros}00é", f"{zeros}000é"}
    assert alike("a lone \udcff and 1") == "a lone \udcff and 0"


@given(st.lists(st.text("ab\n", max_size=5)))
def test_the_lines_that_hold_a_word_are_all_found(words: list[str]) -> None:
    text = "".join(words)
    assert [*holding("ab", text)] == [line for line in text.split("\n") if "ab" in line]
