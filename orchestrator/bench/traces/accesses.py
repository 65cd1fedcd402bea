"""The uses of the prefix cache by the requests of a trace, in the order in which a server would get them. Pure.

The order depends on how fast the server is, which is unknown before the run: each output token is assumed to take
`S_PER_TOKEN`. Sessions that run at the same time take turns in any case, so the hit rates depend on it by little.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

from orchestrator.bench.traces.request import TraceRequest, Tree
from orchestrator.plan.reuse_distance import Block, CacheAccess

S_PER_TOKEN: Final = 0.02


def cache_accesses(
    trees: Iterable[Tree],
    *,
    concurrency: int | None = None,
    max_delay_s: float | None = None,
    warmup_requests: int = 0,
) -> Iterator[CacheAccess]:
    """Yield the accesses of the sessions: `concurrency` of them at a time, or each at its recorded arrival.

    Only the sessions that run at the same time are in memory. Delays count up to `max_delay_s`.
    """
    longest = float("inf") if max_delay_s is None else max_delay_s
    for number, (tree, index) in enumerate(_in_order(trees, concurrency=concurrency, max_delay_s=longest)):
        request, following = tree[index], _continuation(tree, index)
        prompt = _blocks(request.block_ids, request.block_tokens, request.input_tokens)
        held = [*prompt, (None, request.output_tokens)]
        if following is not None:
            held = _blocks(following.block_ids, request.block_tokens, request.input_tokens + request.output_tokens)
        yield CacheAccess(prompt=prompt, held=held, session=tree[0].session, counted=number >= warmup_requests)


def _blocks(ids: Iterable[int], size: int, tokens: int) -> list[Block]:
    """Return the blocks of the first `tokens` tokens; tokens after the last id are new."""
    blocks, left = list[Block](), tokens
    for each in ids:
        if left <= 0:
            break
        blocks.append((each, min(size, left)))
        left -= size
    return [*blocks, (None, left)] if left > 0 else blocks


def _continuation(tree: Tree, index: int) -> TraceRequest | None:
    """Return the next request of the session if its prompt continues with the answer of this one."""
    request = tree[index]
    for later in tree[index + 1 :]:
        if later.session == request.session:
            return later if later.continues else None
    return None


@dataclass
class _RunningTree:
    """A tree that runs: the end of each request that was sent, and how many ends each other one waits for."""

    tree: Tree
    ends: dict[int, float] = field(default_factory=dict)


def _in_order(trees: Iterable[Tree], *, concurrency: int | None, max_delay_s: float) -> Iterator[tuple[Tree, int]]:
    """Yield each request as its tree and index, by the time at which it is sent."""
    pending, order = iter(trees), count()
    queue: list[tuple[float, int, _RunningTree, int]] = []  # time, tie, tree, request
    ahead = next(pending, None)
    running, freed = 0, 0.0
    while queue or ahead is not None:
        while ahead is not None and _starts(ahead, queue, running=running, concurrency=concurrency):
            begin = freed if concurrency else ahead[0].arrival_s or 0.0
            started, running = _RunningTree(ahead), running + 1
            for index, request in enumerate(ahead):
                if not request.after:
                    heappush(queue, (begin, next(order), started, index))
            ahead = next(pending, None)
        now, _, found, index = heappop(queue)
        yield found.tree, index
        found.ends[index] = now + found.tree[index].output_tokens * S_PER_TOKEN
        for later, request in enumerate(found.tree):
            if index in request.after and all(each in found.ends for each in request.after):
                at = max(found.ends[each] for each in request.after) + min(request.delay_s, max_delay_s)
                if concurrency is None and request.arrival_s is not None:
                    at = max(at, request.arrival_s)
                heappush(queue, (at, next(order), found, later))
        if len(found.ends) == len(found.tree):
            running, freed = running - 1, max(found.ends.values())


def _starts(
    ahead: Tree, queue: list[tuple[float, int, _RunningTree, int]], *, running: int, concurrency: int | None
) -> bool:
    """Return whether the next tree starts before the next request that is due."""
    if concurrency is not None:
        return running < concurrency
    return not queue or (ahead[0].arrival_s or 0.0) <= queue[0][0]
