"""Polling until a condition holds or a timeout expires."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll_until(
    done: Callable[[T], bool],
    look: Callable[[], T],
    *,
    within: float,
    pause: float,
    meanwhile: Callable[[T], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `look` until its result is `done` or `within` seconds have passed; return its last result.

    The first call is immediate, the others follow every `pause` seconds; `meanwhile` gets the result before each pause.
    """
    end = clock() + within
    while not done(found := look()) and clock() < end:
        meanwhile(found)
        sleep(pause)
    return found
