"""Work that keeps one core busy for seconds and disturbs nobody: carried out on every core at once."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


@contextmanager
def together(work: Mapping[Key, Callable[[], Found]]) -> Iterator[Callable[[Key], Found]]:
    """Begin all of it; a call waits for one piece, and raises what that raised. What nobody waits for is left out."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    futures = {key: pool.submit(piece) for key, piece in work.items()}
    try:
        yield lambda key: futures[key].result()
    finally:
        pool.shutdown(cancel_futures=True)
