"""Prompts and arrival times: the same workload, seed and point give the same bytes, on any machine, in any order.

Everything is drawn from SHAKE-128 over a label, so request 17 at 2.25 rps is the same whether or not the rates before
it were run (`--resume`), and no prompt's own part is ever sent twice in a run.

Prompts of text are passages of one text, whose end goes on with its beginning. No two own parts of a point begin at the
same token of it.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

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


def prompts(workload: Workload, label: str, count: int, text: Sequence[int] = ()) -> Iterator[Prompt]:
    """Draw `count` prompts of exactly `input_tokens` ids for the point `label`, prefixes evenly at random.

    `text` are the token ids of the text, for a workload whose prompts are text.
    """
    choices = (choice % _prefixes(workload) for choice in _words(workload, f"{label}/choice", count))
    return _with_prefixes(workload, label, choices, text)


def warmup_prompts(workload: Workload, label: str, text: Sequence[int] = ()) -> Iterator[Prompt]:
    """Draw one prompt for each prefix, of the same shape as those that are measured."""
    return _with_prefixes(workload, f"{label}/warm-up", range(_prefixes(workload)), text)


def _prefixes(workload: Workload) -> int:
    """Return how many prefixes there are: a single empty one where nothing is to come from cache."""
    return workload.num_prefixes if workload.prefix_tokens else 1


def _with_prefixes(workload: Workload, label: str, choices: Iterable[int], text: Sequence[int]) -> Iterator[Prompt]:
    prefix = cache(lambda choice: _part(workload, "prefix", choice, workload.prefix_tokens, text))
    own = workload.input_tokens - workload.prefix_tokens
    for index, choice in enumerate(choices):
        yield Prompt(prefix=prefix(choice), rest=_part(workload, label, index, own, text))


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


def _part(workload: Workload, label: str, index: int, count: int, text: Sequence[int]) -> bytes:
    """`count` ids as they stand in a JSON array: random ones, or a passage of `text`."""
    if workload.prompts == "text":
        begin = _words(workload, label, 1)[0] + index * _stride(len(text))
        return ",".join([str(text[(begin + place) % len(text)]) for place in range(count)]).encode()
    first, last = workload.token_ids
    span = last - first + 1
    return ",".join([str(first + word % span) for word in _words(workload, f"{label}/{index}", count)]).encode()


def _stride(length: int) -> int:
    """From passage to passage: far apart, and back at the first only after as many as the text has tokens."""
    return next(step for step in range(round(length * 0.618), length) if math.gcd(step, length) == 1)


def _words(workload: Workload, label: str, count: int) -> tuple[int, ...]:
    raw = hashlib.shake_128(f"{workload.seed}/{label}".encode()).digest(4 * count)
    return struct.unpack(f"<{count}I", raw)
