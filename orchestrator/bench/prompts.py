"""Prompts and arrival times, reproducible byte for byte from workload, seed and point.

Random numbers come from SHAKE-128 over a label. Request 17 at 2.25 rps is therefore the same whether or not earlier
rates were run (`--resume`), and no prompt suffix repeats within a run.

Text prompts are passages of one text, which wraps around. No two suffixes of a point start at the same token.
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
    """Token ids as the inside of a JSON array; requests with the same prefix share its bytes."""

    prefix: bytes
    suffix: bytes

    @property
    def fragments(self) -> tuple[bytes, ...]:
        """The inside of the JSON array, in fragments."""
        return (self.prefix, b",", self.suffix) if self.prefix else (self.suffix,)


def prompts(workload: Workload, label: str, count: int, text: Sequence[int] = ()) -> Iterator[Prompt]:
    """Draw `count` prompts of exactly `input_tokens` ids for the point `label`, with uniformly random prefixes.

    `text` is the tokenized text of a workload with text prompts.
    """
    choices = (choice % _prefixes(workload) for choice in _random_words(workload, f"{label}/choice", count))
    return _with_prefixes(workload, label, choices, text)


def warmup_prompts(workload: Workload, label: str, text: Sequence[int] = ()) -> Iterator[Prompt]:
    """Draw one prompt for each prefix, of the same shape as the measured prompts."""
    return _with_prefixes(workload, f"{label}/warm-up", range(_prefixes(workload)), text)


def _prefixes(workload: Workload) -> int:
    """Return the number of prefixes: a single empty one if the target cache hit rate is 0."""
    return workload.num_prefixes if workload.prefix_tokens else 1


def _with_prefixes(workload: Workload, label: str, choices: Iterable[int], text: Sequence[int]) -> Iterator[Prompt]:
    prefix = cache(lambda choice: _token_ids(workload, "prefix", choice, workload.prefix_tokens, text))
    suffix_tokens = workload.input_tokens - workload.prefix_tokens
    for index, choice in enumerate(choices):
        yield Prompt(prefix=prefix(choice), suffix=_token_ids(workload, label, index, suffix_tokens, text))


def arrival_times(workload: Workload, rate_rps: float, count: int) -> list[float]:
    """Return the planned time of each request in seconds after the start; the last is exactly (count - 1) / rate.

    Poisson gaps are rescaled to the nominal rate: without that, 200 draws miss it by 7 % in one run of three.
    """
    if workload.arrivals == "constant":
        return [index / rate_rps for index in range(count)]
    draws = _random_words(workload, f"{rate_rps:g}/arrivals", count - 1)
    gaps = [-math.log((draw + 1) / 2**32) for draw in draws]
    scale = (count - 1) / rate_rps / sum(gaps)
    times, now = [0.0], 0.0
    for gap in gaps:
        now += gap * scale
        times.append(now)
    return times


def _token_ids(workload: Workload, label: str, index: int, count: int, text: Sequence[int]) -> bytes:
    """Return `count` ids as the inside of a JSON array: random ids, or a passage of `text`."""
    if workload.prompts == "text":
        begin = _random_words(workload, label, 1)[0] + index * _stride(len(text))
        return ",".join([str(text[(begin + offset) % len(text)]) for offset in range(count)]).encode()
    first, last = workload.token_ids
    span = last - first + 1
    return ",".join([str(first + word % span) for word in _random_words(workload, f"{label}/{index}", count)]).encode()


def _stride(length: int) -> int:
    """Return the distance between passages: large, and coprime to `length`, so that no start repeats early."""
    return next(step for step in range(round(length * 0.618), length) if math.gcd(step, length) == 1)


def _random_words(workload: Workload, label: str, count: int) -> tuple[int, ...]:
    raw = hashlib.shake_128(f"{workload.seed}/{label}".encode()).digest(4 * count)
    return struct.unpack(f"<{count}I", raw)
