"""Reuse distances compared with an LRU cache of whole blocks, and the error of sampling."""

import tracemalloc
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan import reuse_distance
from orchestrator.plan.reuse_distance import Block, CacheAccess, HitRates, hit_rates, shared_prefix_accesses


def lru_hits(accesses: Iterable[CacheAccess], *, cache: int, page: int) -> int:
    """Count the hits of an LRU cache of blocks, without reuse distances.

    A last block keeps its greatest length, as in the model.
    """
    saved = OrderedDict[tuple[object, ...], int]()  # oldest first; a key is a whole prefix
    longest: dict[tuple[object, ...], int] = {}
    hits = 0
    for number, access in enumerate(accesses):
        path: tuple[object, ...] = ()
        paths, cached, whole, missed = [], 0, sum(tokens for _, tokens in access.prompt), False
        for depth, (block, tokens) in enumerate(access.prompt):
            path = (*path, (number, depth) if block is None else block)
            missed = missed or path not in saved
            if not missed:
                cached += min(saved[path], tokens)
                missed = saved[path] < tokens
        path = ()
        for depth, (block, tokens) in enumerate(access.cached_after):
            path = (*path, (number, depth) if block is None else block)
            paths.append((path, tokens))
        if access.counted:
            hits += min(cached, whole - 1) // page * page
        for path, tokens in reversed(paths):
            saved.pop(path, None)
            saved[path] = longest[path] = max(longest.get(path, 0), tokens)
        while sum(saved.values()) > cache:
            saved.popitem(last=False)
    return hits


def as_blocks(ids: Sequence[int], size: int, last: int) -> tuple[Block, ...]:
    return tuple((prefix, last if index == len(ids) - 1 else size) for index, prefix in enumerate(ids))


@st.composite
def sequences(draw: st.DrawFn) -> list[CacheAccess]:
    """Draw prompts of few ids, which share prefixes; all blocks but a last one have the same size."""
    size = draw(st.integers(1, 4))
    prompts = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25))
    accesses = []
    for ids in prompts:
        prompt = as_blocks(ids, size, draw(st.integers(1, size)))
        filled = as_blocks([*ids, draw(st.integers(0, 2))], size, 1)  # the output fills the last block
        cached_after = draw(st.sampled_from([(*prompt, (None, draw(st.integers(1, 5)))), filled]))
        accesses.append(CacheAccess(prompt=prompt, cached_after=cached_after, counted=draw(st.booleans())))
    return accesses


@given(sequences(), st.integers(1, 4), st.integers(0, 80))
def test_hit_rate_equals_that_of_an_lru_cache(accesses: list[CacheAccess], page: int, cache: int) -> None:
    result = hit_rates(accesses, page=page)
    assert result.prompt_tokens == sum(tokens for access in accesses if access.counted for _, tokens in access.prompt)
    assert round(result.at(cache) * result.prompt_tokens, 6) == lru_hits(accesses, cache=cache, page=page)


def test_reuse_distances_of_three_prompts() -> None:
    """A, B, A have 10 tokens and 5 of output each: A is reused at distance 25, and its last token is computed again."""
    a, b = ((1, 10),), ((2, 10),)
    result = hit_rates(CacheAccess(prompt=prompt, cached_after=(*prompt, (None, 5))) for prompt in (a, b, a))
    assert result.distances == ((25, pytest.approx(9 / 30)),)
    assert (result.at(24), result.at(25)) == (0, pytest.approx(0.3))
    assert result.unlimited == pytest.approx(0.3)
    assert result.size_for(1.0) == 25


def test_caches_share_the_sessions() -> None:
    """Three sessions with growing prompts take turns on two caches."""
    prompts = [
        (tuple((100 * session + n, 10) for n in range(turn + 1)), session) for turn in range(6) for session in range(3)
    ]
    turns = [CacheAccess(prompt=prompt, cached_after=prompt, session=session) for prompt, session in prompts]
    one, two = (hit_rates(turns, caches=caches) for caches in (1, 2))
    assert one.unlimited == pytest.approx(two.unlimited) == pytest.approx(15 * 3 / 63, abs=0.05)
    assert two.size_for(1.0) < one.size_for(1.0)  # a cache has fewer sessions to hold


def zipf(count: int) -> Iterable[CacheAccess]:
    random = Random(1)
    for _ in range(count):
        first = int(random.paretovariate(0.8)) % 5000
        length = random.randint(1, 40)
        prompt = tuple((first * 100 + n, 64) for n in range(length))
        yield CacheAccess(prompt=prompt, cached_after=(*prompt, (None, 128)))


def curve(result: HitRates) -> list[float]:
    return [result.at(size) for size in (10_000, 50_000, 200_000, 1_000_000, 4_000_000)]


def test_sampling_barely_changes_hit_rates() -> None:
    exact, sampled = curve(hit_rates(zipf(2000), max_blocks=1 << 20)), curve(hit_rates(zipf(2000), max_blocks=1000))
    assert exact == pytest.approx(sampled, abs=0.03)
    assert exact != sampled


def bytes_after(requests: Sequence[CacheAccess], *, max_blocks: int) -> int:
    """Return the bytes that the module alone has allocated after the last request; other threads allocate too."""
    sizes = []

    def accesses() -> Iterator[CacheAccess]:
        yield from requests
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, reuse_distance.__file__)])
        sizes.extend(statistic.size for statistic in snapshot.statistics("filename"))

    tracemalloc.start()
    hit_rates(accesses(), max_blocks=max_blocks)
    tracemalloc.stop()
    return sum(sizes)


def test_memory_is_bounded_for_long_traces() -> None:
    requests = list(zipf(600))
    assert bytes_after(requests, max_blocks=60) < bytes_after(requests[:300], max_blocks=1 << 20) / 2


def test_hit_rate_peaks_when_all_prefixes_fit() -> None:
    """64 prefixes of 1,000 tokens: below 64,000 tokens a random prefix is often evicted, far above it never is."""
    result = hit_rates(
        shared_prefix_accesses(
            requests=500, num_prefixes=64, prefix_tokens=1000, input_tokens=1200, output_tokens=100, seed=3
        )
    )
    assert result.unlimited == pytest.approx(1000 / 1200)
    assert result.at(20_000) < 0.35 < result.at(60_000) < result.at(400_000) == pytest.approx(1000 / 1200, abs=0.01)
