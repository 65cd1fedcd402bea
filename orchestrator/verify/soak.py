"""The soak: minutes of mixed load, for faults that a short test misses.

Each rank gets clients that send one request at a time: half the requests in flight at the knee of the server's
benchmark, or four if no benchmark has found the knee. Published faults appeared after 24 to 86 minutes of such load
(sglang #37648; AMD-AGI/Infera).
"""

import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from statistics import fmean
from typing import Final, TypeAlias

from orchestrator.core.console import format_duration
from orchestrator.core.polling import poll_until
from orchestrator.core.signals import start_thread_without_signals
from orchestrator.engine import endpoints
from orchestrator.engine.liveness import RANK_FIELD
from orchestrator.engine.metrics import Metric
from orchestrator.engine.requests import Body, chat_body, completion_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.verify.client import TOKEN_IDS, SmokeClient
from orchestrator.verify.memory import MemoryWatch
from orchestrator.verify.parser_checks import WEATHER_TOOL
from orchestrator.verify.report import CheckOutcome, failed, passed

_CLIENTS: Final = 4  # for each rank
_STALL_SECONDS: Final = 120.0  # without a finished request of a rank
_TICK: Final = 0.2  # seconds
_INTERVAL: Final = 1.0  # seconds after a failed request
_MAX_ERRORS: Final = 20  # then the soak ends early
_DRAIN_SECONDS: Final = 30.0
_MIN_ACCEPTANCE: Final = 0.8  # minimum share of the accept length at the beginning (our limit)
_Request: TypeAlias = Callable[[SmokeClient, int, random.Random], None]  # of a rank
_QUESTION: Final = "Name the days of the week and what people do on each."


@dataclass
class _Load:
    """The state that the clients share."""

    end: float = 0.0  # by the monotonic clock
    finished_at: dict[int, float] = field(default_factory=dict)  # by rank
    done: list[str] = field(default_factory=list)  # kinds of the requests that succeeded
    errors: list[str] = field(default_factory=list)
    accepted: dict[int, list[float]] = field(default_factory=dict)  # accept lengths of one prompt, by rank
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def is_running(self) -> bool:
        return not self.stopped.is_set() and time.monotonic() < self.end and len(self.errors) < _MAX_ERRORS

    def stalled(self) -> list[int]:
        """Return the ranks that finished no request for `_STALL_SECONDS`."""
        now = time.monotonic()
        return [rank for rank, at in self.finished_at.items() if now - at > _STALL_SECONDS]


def soak(client: SmokeClient) -> CheckOutcome:
    """Check that minutes of mixed load cause no hang, fewer accepted drafts, leaked cache tokens or memory growth."""
    seconds, ranks = client.target.soak_seconds, range(client.target.dp)
    clients = client.target.soak_clients or _CLIENTS
    held_before = _await_tokens(client, lambda used: used != math.inf)
    load = _Load()
    _measure_all(client, load)
    cached = client.described_by.metrics().get(str(Metric.ALL_TOKENS)) or 0.0
    in_host = 0.0 if client.target.on_gpu or not client.is_sglang else client.info().cache_bytes
    memory = MemoryWatch(client.target.memory, seconds, cached, in_host)
    began = time.monotonic()
    load.end, load.finished_at = began + seconds, dict.fromkeys(ranks, began)
    threads = [_start_client(client, load, rank, number) for rank in ranks for number in range(clients)]
    stalled: list[int] = []
    try:
        while not stalled and any(thread.is_alive() for thread in threads):
            time.sleep(_TICK)
            stalled = load.stalled()
            memory.sample_gauges()
            client.show(f"soak: {time.monotonic() - began:.0f} of {seconds:.0f} s, {len(load.done)} requests")
    finally:
        load.stopped.set()
    request_counts = f"{len(load.done):,} requests, {load.done.count('aborted'):,} of them aborted by the client"
    if load.errors:
        total = len(load.done) + len(load.errors)
        return failed(f"{len(load.errors)} of {total:,} requests failed, the first one of kind {load.errors[0]}")
    if stalled:
        names = ", ".join(map(str, stalled))
        return failed(f"no request of rank {names} ended within {_STALL_SECONDS:g} s; {request_counts} before")
    if not load.done:
        return failed(f"no request ended within {format_duration(seconds)}")
    basis = "half the load at its knee" if client.target.soak_clients else "no benchmark names its knee"
    problems, text = [], [f"{format_duration(seconds)}: {request_counts}, {clients} clients a rank ({basis})"]
    _measure_all(client, load)
    for rank, lengths in sorted(load.accepted.items()):
        quarter = max(len(lengths) // 4, 1)
        # the first length was measured before the load
        first, last = max(lengths[0], fmean(lengths[:quarter])), fmean(lengths[-quarter:])
        text.append(f"accept length {first:.2f}, then {last:.2f}")
        if last < _MIN_ACCEPTANCE * first:
            problems.append(f"the accept length of rank {rank} fell from {first:.2f} to {last:.2f}")
    if held_before is not None:
        held = _await_tokens(client, lambda used: used is None or used <= held_before)
        if math.inf in (held, held_before):
            text.append("cache tokens in use not compared: other requests run")
        elif held is not None and held > held_before:
            problems.append(f"{held:,.0f} cache tokens are in use without a request, {held_before:,.0f} before")
    problems += memory.problems()
    return (
        failed("; ".join([*problems, request_counts])) if problems else passed("; ".join([*text, *memory.summaries()]))
    )


def _start_client(client: SmokeClient, load: _Load, rank: int, number: int) -> threading.Thread:
    source = random.Random(f"{client.fresh_ids(8)}, {number}")  # noqa: S311 - prompts, not keys
    thread = threading.Thread(target=_send_requests, args=(client, load, rank, source), daemon=True)
    start_thread_without_signals(thread)
    return thread


def _send_requests(client: SmokeClient, load: _Load, rank: int, source: random.Random) -> None:
    kinds = list(_kinds(client, load).items())
    while load.is_running:
        name, send = source.choice(kinds)
        try:
            send(client, rank, source)
        except (NoResponseError, UnexpectedResponseError) as error:
            if not load.stopped.is_set():
                load.errors.append(f"{name}: {error}")
                load.stopped.wait(_INTERVAL)
        except RuntimeError:  # from httpx: the soak has ended and its client is closed
            if not load.stopped.is_set():
                raise
        else:
            load.done.append(name)
            load.finished_at[rank] = time.monotonic()


def _kinds(client: SmokeClient, load: _Load) -> Mapping[str, _Request]:
    """Return the kinds of requests that the target accepts, by name."""
    kinds: dict[str, _Request] = {"short": _short, "long": _long, "sampled": _sampled, "aborted": _aborted}
    if client.target.tool_parser:
        kinds["tools"] = _with_tools
    if client.target.speculative and client.is_sglang:
        kinds["drafts"] = partial(_measure_drafts, load)
    return kinds


def _complete(client: SmokeClient, rank: int, source: random.Random, *, max_tokens: int, tokens: int) -> None:
    ids = source.choices(TOKEN_IDS, k=source.randint(16, max_tokens))
    client.usage(ids, tokens=tokens, rank=rank)


def _short(client: SmokeClient, rank: int, source: random.Random) -> None:
    _complete(
        client, rank, source, max_tokens=min(512, client.target.context_length // 4), tokens=source.randint(1, 128)
    )


def _long(client: SmokeClient, rank: int, source: random.Random) -> None:
    limit = 8192 if client.target.on_gpu else 1024
    _complete(client, rank, source, max_tokens=min(limit, client.target.context_length // 2), tokens=16)


def _chat(client: SmokeClient, rank: int, **more: object) -> None:
    client.chat(chat_body(client.target.served_name, _QUESTION, tokens=128, **{RANK_FIELD: rank, **more}))


def _sampled(client: SmokeClient, rank: int, source: random.Random) -> None:
    _chat(client, rank, temperature=source.choice((0.3, 1.0)), top_p=0.95, top_k=50)


def _with_tools(client: SmokeClient, rank: int, _: random.Random) -> None:
    _chat(client, rank, tools=[WEATHER_TOOL])


def _aborted(client: SmokeClient, rank: int, source: random.Random) -> None:
    """Close a stream after a few events."""
    ids = source.choices(TOKEN_IDS, k=source.randint(16, 256))
    body: Body = completion_body(client.target.served_name, ids, tokens=256, ignore_eos=True, **{RANK_FIELD: rank})
    with closing(client.events(endpoints.COMPLETIONS, body)) as events:
        for _ in islice(events, source.randint(1, 8)):
            pass


def _measure_drafts(load: _Load, client: SmokeClient, rank: int, _: random.Random | None = None) -> None:
    """Measure the accept length of one prompt, which does not depend on the other requests."""
    if (length := client.generate(_QUESTION, tokens=64, rank=rank).accept_length) is not None:
        load.accepted.setdefault(rank, []).append(length)


def _measure_all(client: SmokeClient, load: _Load) -> None:
    if client.target.speculative and client.is_sglang:
        for rank in range(client.target.dp):
            _measure_drafts(load, client, rank)


def _used_tokens(client: SmokeClient) -> float | None:
    """Return the cache tokens in use, without evictable tokens; None if unknown, inf while requests run.

    sglang sets the gauges after it has sent the answers of a step (0.5.14, batch_result_processor.py): the gauges of a
    one-token request are set when a second one is answered.
    """
    if not client.target.metrics:
        return None
    for rank in (*range(client.target.dp), *range(client.target.dp)):
        client.usage(_QUESTION, tokens=1, rank=rank)
    metrics = client.described_by.metrics()
    return math.inf if metrics.get(str(Metric.RUNNING)) else metrics.get(str(Metric.USED_TOKENS))


def _await_tokens(client: SmokeClient, done: Callable[[float | None], bool]) -> float | None:
    """Return the cache tokens in use once `done` accepts them, or at the timeout: aborted requests end late."""
    return poll_until(done, lambda: _used_tokens(client), timeout=_DRAIN_SECONDS, interval=1.0)
