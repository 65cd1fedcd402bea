"""The signals that ask a command to end: Ctrl-C, a supervisor's SIGTERM, a terminal that goes away."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TERMINATION_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Let them wait until the block has ended: for what must not be left half done.

    Only this thread is deaf to them. The kernel would hand them to another one, and Python runs their handlers in the
    main thread all the same, so every thread of a command that holds them is started by `start_thread_without_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread_without_signals(thread: threading.Thread) -> None:
    """Start a thread that hears none of them, from its first instruction to its last."""
    with defer_signals():  # it inherits what is blocked here
        thread.start()


@contextmanager
def allow_signals() -> Iterator[None]:
    """Inside `defer_signals`: let them end this part of it, at once where one has waited."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """From here on they are ignored: what was asked for is done, and the command only has to say so."""
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
