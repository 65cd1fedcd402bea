"""The sessions of a workload: recorded or synthetic, limited by its keys, and their requests ready to send."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from orchestrator.bench.load_generator import PlannedRequest, Request
from orchestrator.bench.prompts import block_ids
from orchestrator.bench.traces.request import TraceRequest, Tree
from orchestrator.bench.traces.synthetic import synthetic_trees
from orchestrator.bench.traces.trace import SessionSource, count, open_trace
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import ProfileError

_CACHED_TOKENS: Final = 1 << 21  # tokens in cached blocks; 4 to 7 bytes each
_MAX_KEY: Final = 128


def open_sessions(workload: Workload) -> SessionSource | None:
    """Open the sessions of a workload; None for independent prompts.

    Raises ProfileError for an invalid trace, and if `max_context` leaves no request.
    """
    location = workload.trace or ""
    if workload.sessions is not None:
        trees = partial(synthetic_trees, workload.sessions, workload.seed)
        source = SessionSource(trees=trees, totals=count(trees()), format="synthetic", digest=None)
    elif workload.trace is not None:
        source = open_trace(Path(workload.trace))
        if workload.load == "open" and source.totals.last_arrival_s is None:
            hint = "run a number of sessions at a time: `--concurrency 8`"
            raise ProfileError("the trace has no arrival times", location=location, hint=hint)
    else:
        return None

    def limited() -> Iterator[Tree]:
        trees = _limited(source.trees(), workload)
        return _from_zero(trees, location) if workload.load == "open" else trees

    totals = count(limited())
    if not totals.requests:
        raise ProfileError("no request is within `max_context`", location=location, hint="increase `max_context`")
    if totals.requests <= workload.warmup_requests:
        message = f"all {totals.requests} requests are warm-up (`warmup_requests` is {workload.warmup_requests})"
        raise ProfileError(message, location=location, hint="reduce `warmup_requests`")
    everything = totals.requests if "requests" in workload.model_fields_set else source.totals.requests
    return replace(source, trees=limited, totals=totals, dropped_requests=everything - totals.requests)


def _limited(trees: Iterator[Tree], workload: Workload) -> Iterator[Tree]:
    """Yield the sessions up to `requests`, if set, each without requests longer than `max_context`."""
    limit = workload.requests if "requests" in workload.model_fields_set else None
    sent = 0
    for tree in trees:
        selected = tree if workload.max_context is None else without_long(tree, workload.max_context)
        if selected:
            yield selected
        sent += len(selected)
        if limit is not None and sent >= limit:
            return


def _from_zero(trees: Iterator[Tree], trace: str) -> Iterator[Tree]:
    """Yield the sessions with arrivals relative to the first. Raises ProfileError if they are not in order."""
    begin = last = None
    for number, tree in enumerate(trees, start=1):
        first = tree[0].arrival_s or 0.0
        begin = first if begin is None else begin
        if last is not None and first < last:
            raise ProfileError(
                f"session {number} arrives at {first:g} s, earlier than the session before it",
                location=trace,
                hint="sort the trace by its arrival times, or ignore them: `--concurrency 8`",
            )
        last = first
        yield tuple(
            item if item.arrival_s is None else replace(item, arrival_s=item.arrival_s - begin) for item in tree
        )


def without_long(tree: Tree, max_context: int) -> Tree:
    """Return the tree without requests over `max_context`, later requests of their sessions, and subagents of these."""
    selected: dict[int, TraceRequest] = {}
    ended: set[str] = set()
    new_index: dict[int, int] = {}
    for index, request in enumerate(tree):
        orphan = request.position == 0 and bool(request.after) and request.after[0] not in selected
        if request.session in ended or orphan or request.input_tokens + request.output_tokens > max_context:
            ended.add(request.session)
            continue
        new_index[index] = len(selected)
        selected[index] = replace(request, after=tuple(new_index[item] for item in request.after if item in selected))
    return tuple(selected.values())


class SessionTokens:
    """The token ids of the blocks of a point, as insides of JSON arrays."""

    def __init__(self, workload: Workload, label: str, text: Sequence[int], *, block_tokens: int) -> None:
        """Draw from `text`, or at random; each `label` gives other tokens. `block_tokens` is the largest block."""
        self.answers = 0  # answers of successful requests in later prompts
        self.drawn_answers = 0  # answers without token ids, replaced by drawn tokens
        self._draw = partial(block_ids, workload, text=text)
        self._label = label
        self._block = lru_cache(max(_CACHED_TOKENS // block_tokens, 1))(
            lambda block, tokens: self._draw(f"{label}block/{block}", tokens)
        )

    def prompt(self, request: TraceRequest, context: bytes, context_tokens: int) -> bytes:
        """Return the prompt of a request, which begins with `context` if it continues the session."""
        if request.continues:
            new = request.input_tokens - context_tokens
            return b"%b,%b" % (context, self._new_tokens(request, "turn", new))
        size, remaining, parts = request.block_tokens, request.input_tokens, list[bytes]()
        for block in request.block_ids:
            parts.append(self._block(block, min(size, remaining)))
            remaining -= min(size, remaining)
        if remaining:
            parts.append(self._new_tokens(request, "tail", remaining))
        return b",".join(parts)

    def answer(self, request: TraceRequest) -> bytes:
        """Return tokens in place of an answer whose ids are unknown."""
        return self._new_tokens(request, "answer", request.output_tokens)

    def _new_tokens(self, request: TraceRequest, kind: str, tokens: int) -> bytes:
        return self._draw(f"{self._label}{kind}/{request.session}/{request.position}", tokens)


def session_key(name: str) -> str:
    """Return a session's name as a header value, or its hash if the name is not a valid value."""
    is_plain = name.isascii() and name.isprintable() and name == name.strip() and 0 < len(name) <= _MAX_KEY
    return name if is_plain else hashlib.sha256(name.encode()).hexdigest()[:32]


class TreeSession:
    """A tree of requests, built one by one during the load."""

    def __init__(
        self,
        tree: Tree,
        tokens: SessionTokens,
        build: Callable[[bytes, PlannedRequest, str], Request],
        plan: Callable[[TraceRequest], PlannedRequest],
    ) -> None:
        """Plan the requests of `tree`.

        `build` creates a request from token ids (the inside of a JSON array), its plan, and the session's name.
        """
        continued = {(item.session, item.position - 1) for item in tree if item.continues}
        self._tree = tree
        self._tokens = tokens
        self._build = build
        self._contexts: dict[str, tuple[bytes, int]] = {}  # each session's last prompt and answer
        self._prompts: dict[int, bytes] = {}
        planned = map(plan, tree)
        self.requests: Sequence[PlannedRequest] = tuple(
            replace(item, keeps_answer=(item.session, item.position) in continued) for item in planned
        )

    def build(self, index: int) -> Request:
        """Build a request."""
        request, planned = self._tree[index], self.requests[index]
        prompt = self._tokens.prompt(request, *self._contexts.pop(request.session, (b"", 0)))
        if planned.keeps_answer:
            self._prompts[index] = prompt
        return self._build(prompt, planned, self._tree[0].session)

    def answered(self, index: int, ids: bytes | None) -> None:
        """Save prompt and answer if a later prompt begins with them."""
        if (prompt := self._prompts.pop(index, None)) is not None:
            request = self._tree[index]
            self._tokens.answers += ids != b""
            self._tokens.drawn_answers += ids is None
            answer = ids or self._tokens.answer(request)
            self._contexts[request.session] = b"%b,%b" % (prompt, answer), request.input_tokens + request.output_tokens


def plan_closed(request: TraceRequest, *, max_delay_s: float | None) -> PlannedRequest:
    """Plan a request to follow its predecessors, ignoring its recorded arrival."""
    delay = request.delay_s if max_delay_s is None else min(request.delay_s, max_delay_s)
    return PlannedRequest(
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        session=request.session,
        position=request.position,
        is_subagent=request.parent is not None,
        after=request.after,
        delay_s=delay,
    )


def plan_open(request: TraceRequest, *, speed: float, max_delay_s: float | None) -> PlannedRequest:
    """Plan a request at its recorded arrival divided by `speed`; only a continued prompt waits for an answer."""
    closed = plan_closed(request, max_delay_s=max_delay_s)
    if request.arrival_s is None:
        return replace(closed, delay_s=closed.delay_s / speed)
    return replace(
        closed, arrival_s=request.arrival_s / speed, after=request.after if request.continues else (), delay_s=0.0
    )
