"""Looking again and again until something is so."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from orchestrator.core.signals import defer_signals

if TYPE_CHECKING:
    from tenacity import RetryCallState

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
    """What `look` saw last: something that is `done`, or else what there was after `within` seconds.

    It looks at once and then every `pause` seconds; `meanwhile` is told what was seen before each pause.
    """
    with (
        defer_signals()
    ):  # a package whose import was interrupted cannot be imported again, as what is put away then needs it
        from tenacity import Retrying, retry_if_result, wait_fixed  # noqa: PLC0415 - 60 ms that few commands need

    began = clock()

    def seen(state: "RetryCallState") -> T:
        return cast("T", state.outcome.result()) if state.outcome else look()

    again = Retrying(
        retry=retry_if_result(lambda found: not done(found)),
        stop=lambda _: clock() - began >= within,
        wait=wait_fixed(pause),
        before_sleep=lambda state: meanwhile(seen(state)),
        retry_error_callback=seen,
        sleep=sleep,
    )
    return again(look)
