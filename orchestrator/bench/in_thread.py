"""A thread for a blocking function, so that the event loop keeps sending requests and handling Ctrl-C."""

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
