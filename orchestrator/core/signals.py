"""Termination signals: Ctrl-C (SIGINT), a supervisor's SIGTERM, and SIGHUP of a closed terminal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TERMINATION_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay termination signals until the end of the block, for steps that must not be interrupted.

    Only this thread blocks the signals. The kernel would deliver them to another thread, and Python would still run the
    handlers in the main thread. A command that uses this function therefore starts every thread with
    `start_thread_without_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread_without_signals(thread: threading.Thread) -> None:
    """Start a thread that blocks termination signals from its first instruction on."""
    with defer_signals():  # the new thread inherits the signal mask
        thread.start()


@contextmanager
def allow_signals() -> Iterator[None]:
    """Allow termination signals for a block inside `defer_signals`; a delayed signal is delivered at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """Ignore termination signals from now on: the work is done, and only its result remains to be printed."""
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
