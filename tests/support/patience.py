"""Waiting for what has to come: long enough for a busy machine, and never for ever."""

import time
from collections.abc import Callable

PATIENCE = 300  # seconds


def wait_for(condition: Callable[[], bool]) -> None:
    """Return as soon as it holds; fail when it does not in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s"
        time.sleep(0.05)
