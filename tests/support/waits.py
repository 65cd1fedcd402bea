"""Wait for a condition, with a timeout that is long enough for a busy machine."""

import time
from collections.abc import Callable

TIMEOUT = 600  # seconds; a third of the timeout of a test


def wait_for(condition: Callable[[], bool], interval: float = 0.05) -> None:
    """Wait until the condition is true; fail after `TIMEOUT` seconds.

    The interval is at least `interval` seconds and four times the duration of a check, at most 5 s, because `kubectl`
    and `deploy` use a whole core.
    """
    deadline = time.monotonic() + TIMEOUT
    while True:
        started = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"not within {TIMEOUT} s"
        time.sleep(min(max(interval, 4 * (time.monotonic() - started)), 5.0))
