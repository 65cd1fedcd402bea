"""Run independent calls in parallel."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@contextmanager
def in_parallel(work: Mapping[Key, Callable[[], Result]]) -> Iterator[Callable[[Key], Result]]:
    """Start all calls, one on each core; yield a function that waits for a result. Cancel the rest at the end."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    futures = {key: pool.submit(piece) for key, piece in work.items()}
    try:
        yield lambda key: futures[key].result()
    finally:
        pool.shutdown(cancel_futures=True)
