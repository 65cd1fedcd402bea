"""Test the progress line: it updates in place on a terminal and prints few lines in a log."""

import io
from dataclasses import dataclass

import pytest

from orchestrator.core.console import Progress


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_gets_one_line_per_stage_and_interval() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    for second in range(70):
        clock.seconds = float(second)
        stage = "loading" if second < 5 else "capturing"
        progress.update(f"{stage} {second}/70", stage=stage, transient=f"{second} s")
    progress.done()

    assert stream.getvalue().splitlines() == [
        "loading 0/70",
        "capturing 5/70",
        "capturing 35/70  35 s",
        "capturing 65/70  65 s",
        "capturing 69/70",
    ]


def test_progress_without_stage_logs_each_new_text() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    for text in ("installing", "installing", "installed"):
        progress.update(text, transient="1 s")
    clock.seconds = 31
    progress.update("installed", transient="31 s")
    progress.done()

    assert stream.getvalue().splitlines() == ["installing", "installed", "installed  31 s"]


def test_stage_is_logged_again_after_done() -> None:
    stream = io.StringIO()
    progress = Progress(stream, clock=Clock())
    progress.done()
    for _ in range(2):
        progress.update("pulling", stage="pull")
        progress.done()

    assert stream.getvalue() == "pulling\npulling\n"


def test_terminal_progress_stays_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = Progress(stream, clock=Clock())
    progress.update("loading 1/9", stage="loading", transient="1 s")
    progress.update("loading 2/9 of a long name", stage="loading", transient="2 s")
    progress.done()

    assert stream.getvalue() == "\r\x1b[2Kloading 1/9  1 s\r\x1b[2Kloading 2/9 o…  2 s\n"
