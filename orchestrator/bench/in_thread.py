"""A thread for a function that blocks, so that requests are sent and Ctrl-C is heard meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from orchestrator.core.signals import start_thread_without_signals

Result = TypeVar("Result")


async def in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of `function`, or raise its error. If cancelled, the thread ends with the process."""
    future = Future[Result]()

    def work() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - raised by the caller
            future.set_exception(error)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()
    start_thread_without_signals(threading.Thread(target=work, daemon=True))
    return await asyncio.wrap_future(future)
