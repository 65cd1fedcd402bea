"""Test that an interrupt which Python drops in one of its callbacks is raised again."""

import signal
import sys
import threading
import time
import weakref

import pytest

from orchestrator.cli import exit_codes


class Target:
    pass


def test_interrupt_in_callback_is_raised_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", exit_codes._interrupt_again)
    before = signal.signal(signal.SIGTERM, exit_codes._interrupt)
    try:
        target = Target()
        reference = weakref.ref(target, lambda _: exit_codes._interrupt(0, None))
        del target
        assert reference() is None
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Traceback" not in capsys.readouterr().err


def test_second_interrupt_is_not_reported_as_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second interrupt arrives when the signals deferred for the start of the thread are delivered."""
    original = exit_codes.start_thread_without_signals

    def start_and_interrupt(thread: threading.Thread) -> None:
        original(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(exit_codes, "start_thread_without_signals", start_and_interrupt)
    test_interrupt_in_callback_is_raised_again(monkeypatch, capsys)
