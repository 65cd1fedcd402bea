"""An interrupt that Python drops in a callback of its own comes once more."""

import signal
import sys
import threading
import time
import weakref

import pytest

from orchestrator.cli import exit_codes


class Thing:
    """What a callback may wait for the end of."""


def test_interrupt_in_callback_is_raised_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", exit_codes._interrupt_again)
    before = signal.signal(signal.SIGTERM, exit_codes._interrupt)
    try:
        thing = Thing()
        watched = weakref.ref(thing, lambda _: exit_codes._interrupt(0, None))
        del thing
        assert watched() is None
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Traceback" not in capsys.readouterr().err


def test_second_interrupt_is_not_reported_as_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is heard where the signals that were held for the thread are let go."""
    start_deaf = exit_codes.start_thread_without_signals

    def interrupted(thread: threading.Thread) -> None:
        start_deaf(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(exit_codes, "start_thread_without_signals", interrupted)
    test_interrupt_in_callback_is_raised_again(monkeypatch, capsys)
