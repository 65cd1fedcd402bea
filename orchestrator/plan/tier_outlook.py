"""The benefit of a cache tier behind the device for a workload, from reuse distances and transfer costs."""

from dataclasses import dataclass
from typing import Final

from orchestrator.plan.capacity import Capacity
from orchestrator.plan.reuse_distance import HitRates, hit_rates, shared_prefix_accesses

_REQUESTS: Final = 4000
_PREFIXES: Final = 1000  # limit of simulated prefixes; more prefixes have proportionally longer distances
_RELEVANT: Final = 0.01  # share of the prompt tokens
_HIT_SHARE: Final = 0.95  # share of the hits within the displayed distance


@dataclass(frozen=True, kw_only=True)
class TierCosts:
    """The microseconds per token to retrieve it from a tier, to store it there, and to recompute it."""

    retrieve: float
    store: float
    recompute: float
    source: str

    @property
    def break_even(self) -> float | None:
        """The number of uses from which a stored token costs less than recomputation; None: never."""
        gain = self.recompute - self.retrieve
        return self.store / gain if gain > 0 else None


PUBLISHED: Final = TierCosts(
    retrieve=60, store=150, recompute=71, source="published for GLM-5.2 on MI355X with LMCache (ROCm/ATOM, recipes)"
)


@dataclass(frozen=True, kw_only=True)
class LoadReuse:
    """The hit rates of a load by cache size; the load is `scale` times as large as the load of `rates`."""

    workload: str
    rates: HitRates
    output_share: float  # output tokens for each prompt token
    scale: float = 1.0

    def at(self, tokens: int) -> float:
        """Return the hit rate of a cache of `tokens` tokens, 0 to 1."""
        return self.rates.at(int(tokens / self.scale))


@dataclass(frozen=True, kw_only=True)
class TierOutlook:
    """The benefit of a cache tier for a workload. Shares are of the prompt tokens, 0 to 1."""

    workload: str
    reuse_distance: int  # size in tokens of an LRU cache with 95 % of all possible hits; 0: no reuse
    device_hits: float
    host_hits: float  # hits of the host after device misses; without a tier, of an unlimited tier
    other_hits: float  # hits beyond the host, in storage if there is one
    uses: float  # uses per token stored on the host
    costs: TierCosts
    saved_us: float  # per prompt token; negative: the tier costs more than it saves
    helps: bool
    reason: str


def tier_outlook(capacity: Capacity, reuse: LoadReuse, costs: TierCosts) -> TierOutlook | None:
    """Estimate the benefit of a tier for a load; None if the size of the device's cache is unknown."""
    if capacity.cache is None or not capacity.cache.tokens:
        return None
    device, possible = reuse.at(capacity.cache.tokens), reuse.rates.unlimited
    total_tokens = None if capacity.host is None else capacity.host.reach(capacity.cache.tokens)
    host = (possible if total_tokens is None else reuse.at(total_tokens)) - device
    stored = 1 - device - host + reuse.output_share
    saved = host * (costs.recompute - costs.retrieve) - stored * costs.store
    uses, distance = host / stored, int(reuse.rates.size_for(_HIT_SHARE) * reuse.scale)
    reason = ""
    if possible < _RELEVANT:
        reason = "no token is reused"
    elif possible - device < _RELEVANT:
        reason = f"the GPU's {capacity.cache.tokens:,} tokens hold all reused tokens"
    elif host < _RELEVANT:
        reason = f"the reuse distance is {distance:,} tokens, but GPU and host hold {total_tokens:,}"
    elif saved <= 0:
        needed = (
            "never pays off"
            if costs.break_even is None
            else f"pays off from {costs.break_even:.1f} uses per stored token"
        )
        reason = f"the tier {needed}; the load has {uses:.1f}"
    return TierOutlook(
        workload=reuse.workload,
        reuse_distance=distance,
        device_hits=round(device, 4),
        host_hits=round(host, 4),
        other_hits=round(possible - device - host, 4),
        uses=round(uses, 2),
        costs=costs,
        saved_us=round(saved, 2),
        helps=not reason,
        reason=reason or f"{host:.0%} of the prompt tokens come from the host instead of being computed",
    )


def prefix_reuse(
    workload: str,
    *,
    num_prefixes: int,
    prefix_tokens: int,
    input_tokens: int,
    output_tokens: int,
    page: int,
    caches: int = 1,
) -> LoadReuse:
    """Simulate the reuse of shared prefixes, with a sample if there are many."""
    prefixes = min(num_prefixes, _PREFIXES)
    accesses = shared_prefix_accesses(
        requests=_REQUESTS,
        num_prefixes=prefixes,
        prefix_tokens=prefix_tokens,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        caches=caches,
    )
    return LoadReuse(
        workload=workload,
        rates=hit_rates(accesses, page=page, caches=caches),
        output_share=output_tokens / input_tokens,
        scale=num_prefixes / prefixes,
    )
