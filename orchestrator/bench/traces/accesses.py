"""The prefix-cache accesses of a trace's requests, in the order in which a server would receive them. Pure.

The order depends on the server's speed, which is unknown before the run: each output token is assumed to take
`S_PER_TOKEN`. Concurrent sessions alternate at any speed, so the hit rates hardly depend on it.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

from orchestrator.bench.traces.request import TraceRequest, Tree
from orchestrator.plan.reuse_distance import Block, CacheAccess

S_PER_TOKEN: Final = 0.02
_EXACT_BITS: Final = (
    5  # leading bits of the position of a turn: the turns of a block are at most 6 % of those before it
)


def cache_accesses(
    trees: Iterable[Tree],
    *,
    concurrency: int | None = None,
    max_delay_s: float | None = None,
    warmup_requests: int = 0,
    drawn_share: float = 0.0,
) -> Iterator[CacheAccess]:
    """Yield the accesses of the sessions: `concurrency` at a time, or each at its recorded arrival.

    Only running sessions are in memory. Delays count up to `max_delay_s`. For `drawn_share` of the answers, 0 to 1,
    later prompts have other tokens; the random choice of answers is reproducible.
    """
    max_delay = float("inf") if max_delay_s is None else max_delay_s
    choices = Random(0)  # noqa: S311 - not for security
    for number, (running, index) in enumerate(_in_order(trees, concurrency=concurrency, max_delay_s=max_delay)):
        prompt, cached_after = running.blocks(index, is_drawn=choices.random() < drawn_share)
        session = running.tree[0].session
        yield CacheAccess(prompt=prompt, cached_after=cached_after, session=session, counted=number >= warmup_requests)


def _recorded_blocks(request: TraceRequest) -> list[Block]:
    """Return the blocks of a prompt, with new blocks for the tokens after the last id."""
    blocks, remaining = list[Block](), request.input_tokens
    for item in request.block_ids:
        blocks.append((item, min(request.block_tokens, remaining)))
        remaining -= blocks[-1][1]
    return [*blocks, (None, remaining)] if remaining else blocks


class _RunningTree:
    """A running tree: the end times of sent requests, and the dependencies of the others.

    If a prompt continues a session, its new tokens and its answer form a single block of any size. Later turns share a
    block, so a session of N turns has about 16 log N blocks, and all its prompts take little more than N steps.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.ends: dict[int, float] = {}
        self.followers: list[list[int]] = [[] for _ in tree]
        for index, request in enumerate(tree):
            for before in request.after:
                self.followers[before].append(index)
        self._waits = [len(request.after) for request in tree]
        self._continued = {(item.session, item.position - 1) for item in tree if item.continues}
        self._contexts: dict[str, list[Block]] = {}  # each session's last prompt and answer

    def end(self, index: int, at: float) -> Iterator[int]:
        """Record the end of a request; yield the requests that are no longer waiting."""
        self.ends[index] = at
        for follower in self.followers[index]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                yield follower

    def blocks(self, index: int, *, is_drawn: bool) -> tuple[list[Block], list[Block]]:
        """Return the blocks of a prompt, without and with its output; call it in the order of sending.

        With `is_drawn`, later prompts of the session have other tokens in place of the output.
        """
        request = self.tree[index]
        prompt = self._contexts.pop(request.session, [])
        if request.continues:
            new = request.input_tokens - sum(tokens for _, tokens in prompt)
            prompt = _extended(prompt, request.position, new)
        else:
            prompt = _recorded_blocks(request)
        is_continued = (request.session, request.position) in self._continued
        if is_continued and is_drawn:
            self._contexts[request.session] = prompt
        if is_drawn or not is_continued:
            return prompt, [*prompt, (None, request.output_tokens)]
        blocks = self._contexts[request.session] = _extended(prompt, request.position, request.output_tokens)
        return prompt, blocks


def _extended(blocks: list[Block], position: int, tokens: int) -> list[Block]:
    """Return the blocks of a session with the new tokens of a turn, or with its answer."""
    shift = max(position.bit_length() - _EXACT_BITS, 0)
    block = -1 - (position >> shift << shift)  # negative: no recorded id
    if blocks and blocks[-1][0] == block:
        return [*blocks[:-1], (block, blocks[-1][1] + tokens)]
    return [*blocks, (block, tokens)]


def _in_order(
    trees: Iterable[Tree], *, concurrency: int | None, max_delay_s: float
) -> Iterator[tuple[_RunningTree, int]]:
    """Yield each request as its tree and index, in the order of sending."""
    pending, order = iter(trees), count()
    queue: list[tuple[float, int, _RunningTree, int]] = []  # time, tie, tree, request
    next_tree = next(pending, None)
    running, freed = 0, 0.0
    while queue or next_tree is not None:
        while next_tree is not None and _starts(next_tree, queue, running=running, concurrency=concurrency):
            begin = freed if concurrency else next_tree[0].arrival_s or 0.0
            started, running = _RunningTree(next_tree), running + 1
            for index, request in enumerate(next_tree):
                if not request.after:
                    heappush(queue, (begin, next(order), started, index))
            next_tree = next(pending, None)
        now, _, session, index = heappop(queue)
        yield session, index
        for later in session.end(index, now + session.tree[index].output_tokens * S_PER_TOKEN):
            request = session.tree[later]
            at = max(session.ends[item] for item in request.after) + min(request.delay_s, max_delay_s)
            if concurrency is None and request.arrival_s is not None:
                at = max(at, request.arrival_s)
            heappush(queue, (at, next(order), session, later))
        if len(session.ends) == len(session.tree):
            running, freed = running - 1, max(session.ends.values())


def _starts(
    next_tree: Tree, queue: list[tuple[float, int, _RunningTree, int]], *, running: int, concurrency: int | None
) -> bool:
    """Return whether the next tree starts before the next queued request."""
    if concurrency is not None:
        return running < concurrency
    return not queue or (next_tree[0].arrival_s or 0.0) <= queue[0][0]
