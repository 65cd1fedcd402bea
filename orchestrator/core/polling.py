"""Polling until a condition holds or a timeout expires."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from orchestrator.core.signals import defer_signals

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")


def poll_until(
    done: Callable[[T], bool],
    probe: Callable[[], T],
    *,
    timeout: float,
    interval: float,
    on_tick: Callable[[T], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `probe` until its result is `done` or `timeout` seconds have passed; return its last result.

    The first call is immediate; the others follow every `interval` seconds. `on_tick` gets the result before each wait.
    """
    # An interrupted import could not be repeated, although the cleanup after Ctrl-C needs this package.
    with defer_signals():
        from tenacity import Retrying, retry_if_result, wait_fixed  # noqa: PLC0415 - 60 ms that few commands need

    began = clock()

    def seen(state: "RetryCallState") -> T:
        return cast("T", state.outcome.result()) if state.outcome else probe()

    retrying = Retrying(
        retry=retry_if_result(lambda result: not done(result)),
        stop=lambda _: clock() - began >= timeout,
        wait=wait_fixed(interval),
        before_sleep=lambda state: on_tick(seen(state)),
        retry_error_callback=seen,
        sleep=sleep,
    )
    return retrying(probe)
