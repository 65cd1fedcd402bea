"""Prompts and arrival times, reproducible byte for byte from workload, seed and point.

Random numbers come from SHAKE-128 over a label. Request 17 at 2.25 rps is therefore the same with or without earlier
rates (`--resume`), and no prompt suffix repeats within a run.

Text prompts are passages of one text, which wraps around. No two suffixes of a point start at the same token.
For an endpoint without token ids, prompts are words with counted tokens: see `text_prompts.py`.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from orchestrator.bench.workload import Workload

_OPENING_WORDS: Final = 4  # at the start of a text, or of a block
FIRST_WORD: Final = "The"  # first word of each prompt: no space precedes it, so its tokens may differ


@dataclass(frozen=True, kw_only=True)
class Words:
    """Text with token counts: words of one token, and passages of the text of a workload with text prompts."""

    first_tokens: int  # tokens of FIRST_WORD, including those that the endpoint adds
    single: tuple[str, ...]
    passages: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids as the inside of a JSON array, or text of a JSON string; equal prefixes share their bytes."""

    prefix: bytes
    suffix: bytes
    separator: bytes = b","

    @property
    def fragments(self) -> tuple[bytes, ...]:
        """The inside of the JSON array or string, in fragments."""
        return (self.prefix, self.separator, self.suffix) if self.prefix else (self.suffix,)


Source = Sequence[int] | Words


def prompts(workload: Workload, label: str, count: int, text: Source = ()) -> Iterator[Prompt]:
    """Draw `count` prompts of exactly `input_tokens` tokens for the point `label`, with uniformly random prefixes.

    `text` is the tokenized text of a workload with text prompts, or the words for an endpoint without token ids.
    """
    choices = (choice % _prefixes(workload) for choice in _random_words(workload, f"{label}/choice", count))
    return _with_prefixes(workload, label, choices, text)


def warmup_prompts(workload: Workload, label: str, text: Source = ()) -> Iterator[Prompt]:
    """Draw one prompt for each prefix, of the same shape as the measured prompts."""
    return _with_prefixes(workload, f"{label}/warm-up", range(_prefixes(workload)), text)


def _prefixes(workload: Workload) -> int:
    """Return the number of prefixes: a single empty one if the target cache hit rate is 0."""
    return workload.num_prefixes if workload.prefix_tokens else 1


def _with_prefixes(workload: Workload, label: str, choices: Iterable[int], text: Source) -> Iterator[Prompt]:
    if isinstance(text, Words):
        yield from _prompts_of_words(workload, label, choices, text)
        return
    prefix = cache(lambda choice: _token_ids(workload, "prefix", choice, workload.prefix_tokens, text))
    suffix_tokens = workload.input_tokens - workload.prefix_tokens
    for index, choice in enumerate(choices):
        yield Prompt(prefix=prefix(choice), suffix=_token_ids(workload, label, index, suffix_tokens, text))


def _prompts_of_words(workload: Workload, label: str, choices: Iterable[int], words: Words) -> Iterator[Prompt]:
    @cache
    def prefix(choice: int) -> bytes:
        count = workload.prefix_tokens - words.first_tokens
        return _json_text(FIRST_WORD + _words(workload, "prefix", choice, count, words))

    suffix_tokens = workload.input_tokens - max(workload.prefix_tokens, words.first_tokens)
    for index, choice in enumerate(choices):
        suffix = _json_text(_words(workload, label, index, suffix_tokens, words))
        yield Prompt(prefix=prefix(choice), suffix=suffix, separator=b"")


def _words(workload: Workload, label: str, index: int, count: int, words: Words) -> str:
    """Return text of `count` tokens: random words, with passages of the workload's text, if any, between them.

    Each text begins with random words, so that repeated passages do not hit a prefix cache.
    """
    passages, remaining = list[str](), count - _OPENING_WORDS
    if workload.prompts == "text" and words.passages:
        at = _random_words(workload, label, 1)[0] + index * _stride(len(words.passages))
        while remaining >= (passage := words.passages[at % len(words.passages)])[1]:
            passages.append(passage[0])
            remaining, at = remaining - passage[1], at + 1
    drawn = _random_words(workload, f"{label}/{index}", max(remaining, 0) + _OPENING_WORDS)
    single = [words.single[word % len(words.single)] for word in drawn][: max(count, 0)]
    return "".join(f" {passage}" for passage in (*single[:_OPENING_WORDS], *passages, *single[_OPENING_WORDS:]))


def _json_text(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


def block_ids(workload: Workload, label: str, tokens: int, *, text: Sequence[int]) -> bytes:
    """Return the ids of a block as the inside of a JSON array; a shorter block is a prefix of a longer one.

    A passage of `text` follows a few random tokens, so that blocks with the same passage differ.
    """
    if workload.prompts == "random":
        return _token_ids(workload, label, 0, tokens, text)
    drawn = _random_words(workload, f"{label}/opening", _OPENING_WORDS)
    opening = [str(text[word % len(text)]).encode() for word in drawn][:tokens]
    passage = _token_ids(workload, label, 0, tokens - len(opening), text)
    return b",".join([*opening, passage] if passage else opening)


def arrival_times(workload: Workload, rate_rps: float, count: int) -> list[float]:
    """Return the planned time of each request in seconds after the start; the last is exactly (count - 1) / rate.

    Poisson gaps are rescaled to the nominal rate; unscaled, 200 draws miss it by 7 % in one run of three.
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
