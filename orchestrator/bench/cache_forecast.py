"""The prefix-cache hit rate that a load can reach on an endpoint.

The hit rate of a workload is known before the run. A point with only some of the sessions, or with drawn answers, has
its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from orchestrator.bench.endpoint import Endpoint
from orchestrator.bench.in_thread import in_thread
from orchestrator.bench.result import CacheForecast, CacheSize, Point
from orchestrator.bench.sessions import open_sessions
from orchestrator.bench.traces.accesses import cache_accesses
from orchestrator.bench.traces.trace import SessionSource
from orchestrator.bench.workload import Workload, load_workload, workload_name
from orchestrator.core.catalog import Catalog
from orchestrator.plan.reuse_distance import CacheAccess, hit_rates, shared_prefix_accesses
from orchestrator.plan.tier_outlook import LoadReuse, prefix_reuse

_SHARES: Final = (0.25, 0.5, 0.75, 0.9, 1.0)  # share of the hits of an unlimited cache


def forecast_load(workload: Workload, source: SessionSource | None, endpoint: Endpoint) -> CacheForecast | None:
    """Compute the forecast of sessions or of independent prompts; None if the prompts share no prefix."""
    if source is not None:
        return forecast_cache(_session_accesses(workload, source), endpoint)
    if not workload.prefix_tokens:
        return None
    accesses = shared_prefix_accesses(
        requests=max(workload.requests_at(rate) for rate in workload.request_rates or (1.0,)),
        num_prefixes=workload.num_prefixes,
        prefix_tokens=workload.prefix_tokens,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        caches=_dp_ranks(endpoint),
        seed=workload.seed,
    )
    return forecast_cache(accesses, endpoint)


def forecast_cache(accesses: Iterable[CacheAccess], endpoint: Endpoint) -> CacheForecast:
    """Compute the forecast of a load in which each session stays on one DP rank."""
    dp_ranks, page, size = _dp_ranks(endpoint), endpoint.facts.page_size or 1, endpoint.tier_tokens
    rates = hit_rates(accesses, caches=dp_ranks, page=page)
    sizes = sorted({rates.size_for(share) for share in _SHARES})
    return CacheForecast(
        prompt_tokens=rates.prompt_tokens,
        sampled_share=None if rates.sampled == 1 else rates.sampled,
        unlimited_share=rates.unlimited,
        sizes=tuple(CacheSize(tokens=tokens, share=rates.at(tokens)) for tokens in sizes),
        dp_ranks=dp_ranks,
        cache_tokens=size,
        share=None if size is None else rates.at(size),
    )


def _dp_ranks(endpoint: Endpoint) -> int:
    return endpoint.facts.dp_ranks * max(len(endpoint.replicas), 1)


def _session_accesses(
    workload: Workload, source: SessionSource, *, requests: int | None = None, drawn_share: float = 0.0
) -> Iterable[CacheAccess]:
    """Return the accesses of the first `requests` of the sessions, warm-up included."""
    accesses = cache_accesses(
        source.trees(),
        concurrency=workload.concurrency if workload.load == "closed" else None,
        max_delay_s=workload.max_think_time_s,
        warmup_requests=workload.warmup_requests,
        drawn_share=drawn_share,
    )
    return islice(accesses, requests)


@dataclass(frozen=True, kw_only=True)
class PointForecasts:
    """The achievable hit rate of each point of a measurement; the same load at several speeds has one forecast."""

    workload: Workload
    source: SessionSource | None
    endpoint: Endpoint
    forecast: CacheForecast | None  # the workload's
    _shares: dict[tuple[int, float], float] = field(default_factory=dict)

    def with_known(self, point: Point) -> Point:
        """Return the point with the workload's hit rate, if its prompts were sent as planned."""
        differs = self.source is not None and self._load(point) != (self.source.totals.requests, 0.0)
        return _with_achievable(point, None if self.forecast is None or differs else self.forecast.share)

    async def complete(self, points: Iterable[Point], progress: Callable[[str, str], None]) -> tuple[Point, ...]:
        """Return the points, each with the hit rate that the prompts it sent can reach."""
        return tuple([await self._with_computed(point, progress) for point in points])

    async def _with_computed(self, point: Point, progress: Callable[[str, str], None]) -> Point:
        source, size = self.source, self.endpoint.tier_tokens
        is_known = point.cache is None or point.cache.achievable_share is not None
        if is_known or source is None or size is None:
            return point
        if (load := self._load(point)) not in self._shares:
            progress(f"{point.label}: computing the achievable hit rate", "")
            accesses = _session_accesses(self.workload, source, requests=load[0], drawn_share=load[1])
            compute = partial(
                hit_rates, accesses, caches=_dp_ranks(self.endpoint), page=self.endpoint.facts.page_size or 1
            )
            self._shares[load] = (await in_thread(compute)).at(size)
        return _with_achievable(point, self._shares[load])

    def _load(self, point: Point) -> tuple[int, float]:
        """Return the number of requests sent, and the share of drawn answers in them."""
        drawn_share = point.sessions.drawn_share if point.sessions is not None else 0.0
        return point.requests + self.workload.warmup_requests, drawn_share


def _with_achievable(point: Point, share: float | None) -> Point:
    return point if point.cache is None else replace(point, cache=replace(point.cache, achievable_share=share))


def load_reuse(name: str, catalog: Catalog, *, page: int, caches: int) -> LoadReuse:
    """Return the reuse of a workload or trace in the cache of a DP rank; each session stays on one of the `caches`.

    Raises UsageError or ProfileError if it cannot be read."""
    workload = load_workload(name, catalog=catalog)
    source = open_sessions(workload)
    if source is None:
        return prefix_reuse(
            workload_name(name),
            num_prefixes=workload.num_prefixes,
            prefix_tokens=workload.prefix_tokens,
            input_tokens=workload.input_tokens,
            output_tokens=workload.output_tokens,
            page=page,
            caches=caches,
        )
    accesses = cache_accesses(source.trees(), concurrency=workload.concurrency, max_delay_s=workload.max_think_time_s)
    return LoadReuse(
        workload=workload_name(name),
        rates=hit_rates(accesses, page=page, caches=caches),
        output_share=source.totals.output_tokens / max(source.totals.input_tokens, 1),
    )
