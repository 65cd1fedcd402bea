"""The achievable prefix-cache hit rate of a sequence of requests, as a function of the cache size. Pure.

The reuse distance of a block is the number of tokens in a least-recently-used stack down to that block: an LRU cache of
C tokens has exactly the blocks with a distance of at most C. One pass thus gives the hit rates of all sizes (Mattson et
al., IBM Systems Journal 9(2), 1970). A Fenwick tree over the times of the last accesses finds a distance in O(log n).
Above `max_blocks` distinct blocks, the algorithm drops half of them by hash and scales distances (SHARDS, Waldspurger
et al., FAST 2015), so that memory does not grow with the length of a trace.

As in sglang's radix cache (0.5.14, srt/mem_cache/radix_cache.py), a block hits only after its whole prefix, leaves are
evicted before their parents, output stays behind its prompt, hits are whole pages, and the last token of a prompt is
always computed. Unlike sglang, the model runs one request at a time, and a short last block keeps its longest length.
"""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

MAX_BLOCKS: Final = 1 << 16  # about 10 MB
_EXACT_BITS: Final = 9  # leading bits of a distance, which is rounded up by at most 0.4 %
_MIN_TIMES: Final = 1 << 10

Block = tuple[int | None, int]  # id and tokens; equal ids after equal ids are equal tokens, None is never used again


@dataclass(frozen=True, kw_only=True)
class CacheAccess:
    """One request's use of the prefix cache: the blocks that it looks up, and the blocks cached afterwards."""

    prompt: Sequence[Block]
    cached_after: Sequence[Block]  # the prompt and its output
    session: str | int | None = None
    counted: bool = True  # False: a warm-up request, which only fills the cache


@dataclass(frozen=True, kw_only=True)
class HitRates:
    """The achievable hit rate of every cache size, in tokens.

    `distances` has the share of the prompt tokens at each reuse distance, ascending; the remaining tokens are new. The
    rates are estimates if `sampled`, the share of sampled blocks, is below 1.
    """

    prompt_tokens: int
    distances: tuple[tuple[int, float], ...]
    sampled: float = 1.0

    @property
    def unlimited(self) -> float:
        """The hit rate of an unlimited cache, 0 to 1."""
        return min(sum(share for _, share in self.distances), 1.0)

    def at(self, cache_tokens: int) -> float:
        """Return the hit rate of a cache of this size, 0 to 1."""
        return min(sum(share for distance, share in self.distances if distance <= cache_tokens), 1.0)

    def size_for(self, share: float) -> int:
        """Return the smallest cache size with `share` of the hits of an unlimited cache."""
        reached = accumulate(hits for _, hits in self.distances)
        goal = share * self.unlimited * (1 - 1e-9)
        return next((size for (size, _), hits in zip(self.distances, reached, strict=True) if hits >= goal), 0)


def hit_rates(
    accesses: Iterable[CacheAccess], *, caches: int = 1, page: int = 1, max_blocks: int = MAX_BLOCKS
) -> HitRates:
    """Compute the hit rates of accesses in order of arrival; sizes are of one cache.

    Each session stays with one cache; other requests go to any, warm-up requests to each in turn.
    """
    stacks = [_Stack(page=page, max_blocks=max_blocks) for _ in range(caches)]
    cache_of: dict[str | int, int] = {}
    for turn, access in enumerate(accesses):
        cache = (hash((turn, caches)) if access.counted else turn) % caches
        if access.session is not None and caches > 1:
            cache = cache_of.setdefault(access.session, len(cache_of) % caches)
        stacks[cache].access(access)
    total = sum(stack.prompt_tokens for stack in stacks)
    distances = defaultdict[int, float](float)
    for stack in stacks:
        for distance, hits in stack.hits.items():
            distances[distance] += hits / stack.sampled_tokens * stack.prompt_tokens / total
    sampled = min(stack.sampled for stack in stacks)
    return HitRates(prompt_tokens=total, distances=tuple(sorted(distances.items())), sampled=sampled)


def shared_prefix_accesses(
    *,
    requests: int,
    num_prefixes: int,
    prefix_tokens: int,
    input_tokens: int,
    output_tokens: int,
    caches: int = 1,
    seed: int = 1,
) -> Iterator[CacheAccess]:
    """Yield the accesses of uniformly random shared prefixes, after one warm-up request for each in each cache."""
    warmup = num_prefixes * caches
    for index in range(warmup + requests):
        draw = int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest())
        prefix = index // caches if index < warmup else draw % num_prefixes
        yield CacheAccess(
            prompt=((prefix, prefix_tokens), (None, input_tokens - prefix_tokens)),
            cached_after=((prefix, prefix_tokens), (None, input_tokens - prefix_tokens + output_tokens)),
            counted=index >= warmup,
        )


class _Stack:
    """A least-recently-used stack of blocks. Keys are hashes of whole prefixes, as in a radix tree."""

    def __init__(self, *, page: int, max_blocks: int) -> None:
        self.prompt_tokens = 0
        self.sampled_tokens = 0.0
        self.hits = defaultdict[int, float](float)  # tokens by distance, of the sampled blocks
        self._page, self._max_blocks = page, max_blocks
        self._halvings = 0  # a block is sampled with probability 2^-halvings
        self._blocks: dict[int, int] = {}  # times of the last accesses, ascending
        self._block_tokens = array("q", bytes(8 * (_MIN_TIMES + 1)))  # tokens by time
        self._tree = self._block_tokens[:]  # Fenwick tree of these tokens
        self._now = self._total = self._unique = 0

    @property
    def sampled(self) -> float:
        """The share of the blocks that count."""
        return 0.5**self._halvings

    def access(self, access: CacheAccess) -> None:
        if access.counted:
            self._count(access)
        for key, _, tokens in reversed(list(self._sampled(access.cached_after))):  # a parent is newer than its children
            self._push(key, tokens)
        while len(self._blocks) > self._max_blocks:
            self._halve()

    def _sampled(self, blocks: Sequence[Block]) -> Iterator[tuple[int, int, int]]:
        """Yield (key, first token, tokens) of the sampled blocks."""
        start = key = 0
        mask = (1 << self._halvings) - 1
        for block, tokens in blocks:
            self._unique += block is None
            key = hash((key, self._unique, 0)) if block is None else hash((key, block))
            if not key >> 16 & mask:
                yield key, start, tokens
            start += tokens

    def _count(self, access: CacheAccess) -> None:
        total, page = sum(tokens for _, tokens in access.prompt), self._page
        self.prompt_tokens += total
        for key, start, tokens in self._sampled(access.prompt):
            self.sampled_tokens += tokens
            if time := self._blocks.get(key):
                end = min(start + min(self._block_tokens[time], tokens), total - 1)
                distance = (self._total - self._tokens_before(time)) << self._halvings
                self.hits[_rounded(distance)] += max(end // page * page - start // page * page, 0)

    def _push(self, key: int, tokens: int) -> None:
        time = self._blocks.pop(key, 0)
        tokens = max(self._block_tokens[time], tokens)
        if time:
            self._remove(time)
        if self._now + 1 == len(self._tree):
            self._rebuild()
        self._now += 1
        self._blocks[key] = self._now
        self._append(tokens)

    def _halve(self) -> None:
        self._halvings += 1
        mask = (1 << self._halvings) - 1
        self._blocks = {key: time for key, time in self._blocks.items() if not key >> 16 & mask}
        self.sampled_tokens /= 2
        for distance in self.hits:
            self.hits[distance] /= 2
        self._rebuild()

    def _rebuild(self) -> None:
        """Renumber the times of the last accesses from 1, with room for as many new ones."""
        self._now = len(self._blocks)
        room = max(self._now, _MIN_TIMES - self._now)
        block_tokens = array("q", [0, *(self._block_tokens[time] for time in self._blocks.values())])
        self._total = sum(block_tokens)
        self._block_tokens = block_tokens + array("q", bytes(8 * room))
        self._blocks = {key: time for time, key in enumerate(self._blocks, start=1)}
        tree = self._tree = self._block_tokens[:]
        for time in range(1, self._now + 1):
            if (parent := time + (time & -time)) <= self._now:
                tree[parent] += tree[time]

    def _append(self, tokens: int) -> None:
        """Set the tokens of the last access; the tree has no later times yet."""
        tree, now = self._tree, self._now
        self._total += tokens
        self._block_tokens[now] = tokens
        step, end = 1, now & -now
        while step < end:
            tokens += tree[now - step]
            step <<= 1
        tree[now] = tokens

    def _remove(self, time: int) -> None:
        tree, now, tokens = self._tree, self._now, self._block_tokens[time]
        self._total -= tokens
        while time <= now:
            tree[time] -= tokens
            time += time & -time

    def _tokens_before(self, time: int) -> int:
        tree, tokens, time = self._tree, 0, time - 1
        while time:
            tokens += tree[time]
            time &= time - 1
        return tokens


def _rounded(distance: int) -> int:
    """Round up to `_EXACT_BITS` leading bits, so that the number of distances stays small."""
    shift = max(distance.bit_length() - _EXACT_BITS, 0)
    return -(-distance >> shift) << shift
