"""The processes that a server is made of, by the titles they give themselves (`setproctitle`)."""

from collections.abc import Iterable
from typing import Final

_OURS: Final = (
    "sglang::"  # scheduler_DP1_TP0, detokenizer, data_parallel_controller (0.5.14, managers/scheduler.py:4148)
)
_SCHEDULER: Final = "scheduler"


def parts(titles: Iterable[str]) -> tuple[str, ...]:
    """sglang's own processes among `titles`, in a person's words, sorted: `rank DP1 TP0`, `detokenizer`."""
    words = (title.split()[0].removeprefix(_OURS) for title in titles if title.startswith(_OURS))
    return tuple(sorted(_named(word) for word in words))


def _named(word: str) -> str:
    ranks = word.removeprefix(_SCHEDULER).replace("_", " ").strip()
    return f"rank {ranks}" if ranks and word.startswith(_SCHEDULER) else word
