"""Prompts and arrival times: the same workload, seed and point give the same bytes, on any machine, in any order.

Everything is drawn from SHAKE-128 over a label, so request 17 at 2.25 rps is the same whether or not the rates before
it were run (`--resume`), and no prompt's own part is ever sent twice in a run.
"""

import hashlib
import math
import struct
from dataclasses import dataclass

from orchestrator.bench.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids as they stand inside a JSON array; all requests of a prefix share its bytes."""

    prefix: bytes
    rest: bytes

    @property
    def array(self) -> tuple[bytes, ...]:
        """The pieces of the JSON array's inside."""
        return (self.prefix, b",", self.rest) if self.prefix else (self.rest,)


def prefix_pool(workload: Workload) -> tuple[bytes, ...]:
    """The shared prefixes; a single empty one where nothing is to come from cache."""
    if not workload.prefix_tokens:
        return (b"",)
    return tuple(_ids(workload, f"prefix/{index}", workload.prefix_tokens) for index in range(workload.prefixes))


def prompts(workload: Workload, label: str, count: int) -> list[Prompt]:
    """`count` prompts of exactly `input_tokens` ids for the point `label`, prefixes drawn evenly at random."""
    pool = prefix_pool(workload)
    choices = _words(workload, f"{label}/choice", count)
    own = workload.input_tokens - workload.prefix_tokens
    return [
        Prompt(prefix=pool[choice % len(pool)], rest=_ids(workload, f"{label}/{index}", own))
        for index, choice in enumerate(choices)
    ]


def warmup_prompts(workload: Workload, label: str) -> list[Prompt]:
    """One prompt for each prefix, of the same shape as those that are measured."""
    own = workload.input_tokens - workload.prefix_tokens
    return [
        Prompt(prefix=prefix, rest=_ids(workload, f"{label}/warm-up/{index}", own))
        for index, prefix in enumerate(prefix_pool(workload))
    ]


def arrival_times(workload: Workload, rate_rps: float, count: int) -> list[float]:
    """Seconds after the start at which each request is due; the last at exactly (count - 1) / rate.

    Poisson gaps are rescaled to the nominal rate: 200 draws alone miss it by 7 % in one run of three.
    """
    if workload.arrivals == "constant":
        return [index / rate_rps for index in range(count)]
    draws = _words(workload, f"{rate_rps:g}/arrivals", count - 1)
    gaps = [-math.log((draw + 1) / 2**32) for draw in draws]
    scale = (count - 1) / rate_rps / sum(gaps)
    times, now = [0.0], 0.0
    for gap in gaps:
        now += gap * scale
        times.append(now)
    return times


def _ids(workload: Workload, label: str, count: int) -> bytes:
    first, last = workload.token_ids
    span = last - first + 1
    return ",".join([str(first + word % span) for word in _words(workload, label, count)]).encode()


def _words(workload: Workload, label: str, count: int) -> tuple[int, ...]:
    raw = hashlib.shake_128(f"{workload.seed}/{label}".encode()).digest(4 * count)
    return struct.unpack(f"<{count}I", raw)
