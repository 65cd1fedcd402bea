"""Waiting for what has to come: long enough for a busy machine, and never for ever."""

import time
from collections.abc import Callable

TIMEOUT = 600  # seconds; a third of the timeout of a test


def wait_for(condition: Callable[[], bool]) -> None:
    """Return as soon as it holds; fail when it does not in time.

    Between two looks it waits twice as long as one takes, 5 s at most: kubectl and `deploy` take a core meanwhile.
    """
    deadline = time.monotonic() + TIMEOUT
    while True:
        looked = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"not within {TIMEOUT} s"
        time.sleep(min(max(0.05, 2 * (time.monotonic() - looked)), 5.0))
