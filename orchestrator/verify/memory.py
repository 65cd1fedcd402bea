"""Detection of memory that keeps growing during a soak.

The samples are split into quarters. Only the smallest sample of each quarter counts, because requests raise the others
for a while. A leak raises this minimum from quarter to quarter and does not slow down. Buffers and caches slow down as
they fill up, and the first requests, before the soak, have already allocated theirs. A leak in rare steps raises the
minimum in three of eight parts and lowers it in none (both rules are this project's).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

MIN_SECONDS: Final = 20.0  # shortest soak in which growth can be separated from noise
GROWTH_BYTES: Final = 32 << 20  # over the last half: 64 MiB/h in a soak of an hour
# Host memory for each token in the prefix cache and each rank, until the cache is full: a Python number in a list
# (8 + 28 bytes) and its index (8), with slack (sglang 0.5.14, mem_cache/radix_cache.py, `TreeNode`)
CACHED_TOKEN_BYTES: Final = 64
_QUARTERS: Final = 4
_MIN_STEPS: Final = 3
_SAMPLES: Final = 60
_MAX_INTERVAL: Final = 15.0  # seconds
_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryGauge:
    """A kind of memory of a server: `read` returns its bytes, or None if they cannot be read now."""

    name: str
    read: Callable[[], int | None] = lambda: None
    unwatched: str = ""  # why it is not read
    token_bytes: int = 0  # allowed growth for each token in the prefix cache, until the cache is full


@dataclass
class MemoryWatch:
    """Samples of gauges during a soak of `seconds`.

    The prefix cache has space for `cached_tokens`. Without a GPU, it fills `host_bytes` of host memory page by page.
    """

    gauges: Sequence[MemoryGauge]
    seconds: float
    cached_tokens: float
    host_bytes: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _samples: dict[str, list[int]] = field(default_factory=dict)
    _due: float = 0.0

    def sample_gauges(self) -> None:
        """Read the gauges if the next sample is due."""
        if self.seconds < MIN_SECONDS or (now := self.clock()) < self._due:
            return
        self._due = now + min(self.seconds / _SAMPLES, _MAX_INTERVAL)
        for gauge in self.gauges:
            if not gauge.unwatched and (used := gauge.read()) is not None:
                self._samples.setdefault(gauge.name, []).append(used)

    def problems(self) -> Iterator[str]:
        """Yield a problem for each kind of memory that keeps growing."""
        for gauge in self.gauges:
            lowest = smallest(self._samples.get(gauge.name, ()))
            fills = gauge.token_bytes * self.cached_tokens + (self.host_bytes if gauge.token_bytes else 0.0)
            eighths, limit = smallest(self._samples.get(gauge.name, ()), 2 * _QUARTERS), GROWTH_BYTES + fills
            if grows(lowest, more_than=limit) or grows_in_steps(eighths, more_than=limit):
                values = ", ".join(f"{item / _MIB:,.0f}" for item in lowest)
                yield f"{gauge.name} keeps growing: {values} MiB at least in the quarters of the soak"

    def summaries(self) -> Iterator[str]:
        """Yield the first and last values of each gauge, or why it has none."""
        if not self.gauges:
            yield "memory not watched: the host of a URL is unknown"
        for gauge in self.gauges:
            if lowest := smallest(self._samples.get(gauge.name, ())):
                yield f"{gauge.name} {lowest[0] / _MIB:,.0f}, then {lowest[-1] / _MIB:,.0f} MiB"
            else:
                short = f"the soak is shorter than {MIN_SECONDS:g} s" if self.seconds < MIN_SECONDS else ""
                yield f"{gauge.name} not watched: {gauge.unwatched or short or 'it could not be read'}"


def smallest(samples: Sequence[int], parts: int = _QUARTERS) -> tuple[int, ...]:
    """Return the smallest sample of each part; () if a part has fewer than three samples."""
    size = len(samples) / parts
    if size < 3:
        return ()
    return tuple(min(samples[int(at * size) : int((at + 1) * size)]) for at in range(parts))


def grows(values: Sequence[int], *, more_than: float) -> bool:
    """Return whether memory grew in each quarter, by over `more_than` bytes in the last two, not slowing to half."""
    rises = [later - earlier for earlier, later in pairwise(values)]
    return bool(rises) and min(rises) > 0 and 2 * rises[-1] >= rises[-2] and rises[-1] + rises[-2] > more_than


def grows_in_steps(values: Sequence[int], *, more_than: float) -> bool:
    """Return whether memory rose in at least three parts and fell in none.

    It must rise by over `more_than` bytes in the last half, and by at least half of the rise in the first.
    """
    rises = [later - earlier for earlier, later in pairwise(values)]
    if not rises or min(rises) < 0 or sum(rise > 0 for rise in rises) < _MIN_STEPS:
        return False
    middle = len(values) // 2 - 1
    first, last = values[middle] - values[0], values[-1] - values[middle]
    return last > more_than and 2 * last >= first
