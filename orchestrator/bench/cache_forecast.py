"""The hit rate of the prefix cache that a load can reach on an endpoint, computed before the run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from orchestrator.bench.endpoint import Endpoint
from orchestrator.bench.result import DRAWN_ANSWERS, CacheForecast, CacheSize, Point
from orchestrator.bench.sessions import SessionSource
from orchestrator.bench.traces.accesses import cache_accesses
from orchestrator.bench.workload import Workload
from orchestrator.plan.reuse_distance import CacheAccess, hit_rates, shared_prefix_accesses

_SHARES: Final = (0.25, 0.5, 0.75, 0.9, 1.0)  # of the hits of an unlimited cache


def forecast_load(
    workload: Workload,
    source: SessionSource | None,
    endpoint: Endpoint,
    *,
    requests: int | None = None,
    drawn_answers: bool = False,
) -> CacheForecast | None:
    """Compute the forecast of sessions or of independent prompts; None if the prompts share no prefix.

    Of sessions only the first `requests` count, with those of the warm-up, if a load ended early. With `drawn_answers`
    a later prompt has other tokens in place of the server's answer.
    """
    if source is not None:
        closed = workload.load == "closed"

        def sessions() -> Iterable[CacheAccess]:
            accesses = cache_accesses(
                source.trees(),
                concurrency=workload.concurrency if closed else None,
                max_delay_s=workload.max_think_time_s,
                warmup_requests=workload.warmup_requests,
                drawn_answers=drawn_answers,
            )
            return islice(accesses, requests)

        return forecast_cache(sessions, endpoint)
    if not workload.prefix_tokens:
        return None
    accesses = partial(
        shared_prefix_accesses,
        requests=max(workload.requests_at(rate) for rate in workload.request_rates or (1.0,)),
        num_prefixes=workload.num_prefixes,
        prefix_tokens=workload.prefix_tokens,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        replicas=_replicas(endpoint),
        seed=workload.seed,
    )
    return forecast_cache(accesses, endpoint, sessions=False)


def forecast_cache(
    accesses: Callable[[], Iterable[CacheAccess]], endpoint: Endpoint, *, sessions: bool = True
) -> CacheForecast:
    """Compute the forecast of a load; `accesses` starts it from the beginning, once per way to distribute it."""
    replicas, page, size = _replicas(endpoint), endpoint.facts.page_size or 1, endpoint.kept_tokens
    found = hit_rates(accesses(), replicas=replicas, page=page)
    spread = hit_rates(accesses(), replicas=replicas, page=page, sticky=False) if replicas > 1 and sessions else None
    sizes = sorted({found.size_for(part) for part in _SHARES})
    return CacheForecast(
        prompt_tokens=found.prompt_tokens,
        sampled_share=None if found.sampled == 1 else found.sampled,
        unlimited_share=found.unlimited,
        sizes=tuple(CacheSize(tokens=each, share=found.at(each)) for each in sizes),
        replicas=replicas,
        cache_tokens=size,
        share=None if size is None else found.at(size),
        spread_share=None if size is None or spread is None else spread.at(size),
    )


def _replicas(endpoint: Endpoint) -> int:
    return endpoint.facts.replicas * max(len(endpoint.replicas), 1)


def has_own_forecast(point: Point, workload: Workload, source: SessionSource | None) -> bool:
    """Return whether other prompts were sent than forecast: a part of the sessions, or drawn answers in them."""
    if source is None:
        return False
    return _sent(point, workload) < source.totals.requests or (
        source.totals.continued > 0 and _has_drawn_answers(point)
    )


def forecast_point(point: Point, workload: Workload, source: SessionSource | None, endpoint: Endpoint) -> Point:
    """Return the point with the hit rate that its prompts can reach, as they were sent."""
    requests, drawn = _sent(point, workload), _has_drawn_answers(point)
    return with_achievable(point, forecast_load(workload, source, endpoint, requests=requests, drawn_answers=drawn))


def _sent(point: Point, workload: Workload) -> int:
    return point.requests + workload.warmup_requests


def _has_drawn_answers(point: Point) -> bool:
    return point.sessions is not None and DRAWN_ANSWERS in point.sessions.next_prompts


def with_achievable(point: Point, forecast: CacheForecast | None) -> Point:
    """Return the point with the hit rate that its load can reach on this server."""
    if forecast is None or point.cache is None:
        return point
    return replace(point, cache=replace(point.cache, achievable_share=forecast.share))
