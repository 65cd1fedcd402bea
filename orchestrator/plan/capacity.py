"""Estimates of a DP rank's capacity before a start: memory per GPU, KV-cache tokens, and concurrent requests.

The inputs are the model, the layout and the flags; `orchestrator.engine.memory` cites each rule of sglang. Sizes are in
bytes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import Field

from orchestrator.core.errors import Problem
from orchestrator.core.text import gb
from orchestrator.core.validation import StrictModel, Text
from orchestrator.engine.cache_tiers import HostTier
from orchestrator.engine.memory import (
    GIB,
    ActivationSpec,
    SlidingWindow,
    activation_bytes,
    cache_type,
    default_mem_fraction,
)
from orchestrator.engine.options import Meaning
from orchestrator.engine.request_memory import RequestMemory
from orchestrator.engine.serving import ServingFacts
from orchestrator.plan.kv_pools import request_memory, running_requests, token_size, unsized
from orchestrator.plan.plan import PlanWarning
from orchestrator.profiles.schema import Profile

# GPU memory in use before the weights: driver and sglang process; with several ranks, also their collectives.
# Measured with sglang 0.5.16 on one and on two H200 of 140 GiB: 139.09 and 138.28 GiB were free. Not measured on AMD.
_PROCESS: Final = int(0.91 * GIB)
_COLLECTIVES: Final = int(0.81 * GIB)
_MAX_FRACTION: Final = 0.99  # static fraction
DEFAULT_WORKLOAD: Final = "short"  # of `bench`, if neither the command nor the profile names one


class Load(StrictModel):
    """The lengths of a workload in tokens; `num_prefixes` shared prefixes cover `cache_hit_rate` of each input."""

    name: Text
    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    cache_hit_rate: float = Field(default=0.0, ge=0, lt=1)
    num_prefixes: int = Field(default=1, ge=1)


@dataclass(frozen=True, kw_only=True)
class LoadFit:
    """The number of concurrent requests of a load that fit into one DP rank's cache."""

    load: str
    tokens: int  # of one request, without its shared prefix
    shared_tokens: int  # of all prefixes together
    num_prefixes: int
    concurrent: int | None  # None: the size of the cache is unknown
    running: int | None  # the profile's limit of running requests per DP rank; None: not set
    fits: bool  # True also where the size of the cache is unknown

    def needed(self, requests: int) -> int:
        """Return the tokens of `requests` concurrent requests that share as few prefixes as possible."""
        shared = min(requests, self.num_prefixes) * (self.shared_tokens // self.num_prefixes)
        return requests * self.tokens + shared


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """One DP rank's cache on one GPU, in pages of `page` tokens. A field is None if only a start determines it."""

    kind: str
    page: int
    token_bytes: float  # as sglang computes it; an integer unless there are sliding windows
    actual_token_bytes: float  # bytes of a token in the pools
    tokens: int | None
    full_contexts: float | None  # requests of full context length
    windows: SlidingWindow | None = None  # layers that keep only the last tokens
    requests: RequestMemory | None = None  # memory per request, besides its tokens
    index_bytes: float = 0  # of a sparse indexer, in `actual_token_bytes`

    @property
    def window_tokens(self) -> int | None:
        """Tokens in the pool of the sliding-window layers."""
        return None if self.windows is None or self.tokens is None else self.windows.tokens(self.tokens, self.page)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one GPU and its uses; fractions are shares of its free memory, 0 to 1."""

    vram_bytes: int
    free_bytes: int  # before weights are loaded
    weights_bytes: int
    fraction: float
    fraction_source: str  # `set`, or `sglang's own`
    cache_bytes: int  # 0 or less: no room for a cache
    activation_bytes: int  # for activations and graphs
    safe_fraction: float  # the largest fraction that leaves `activation_bytes` free


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The capacity of a profile; `context` is the longest request in tokens.

    Values that cannot be computed are None; `unknown` lists the reasons.
    """

    dp_ranks: int  # of all replicas
    gpus: int  # of one DP rank
    memory: Memory | None  # None on a CPU, whose memory other programs share
    cache: KvCache | None
    load_fit: LoadFit | None
    context: int
    max_tokens: int | None  # the profile's limit for a DP rank's cache
    unknown: tuple[str, ...]
    host: HostTier | None = None  # None: no tier in the host's memory

    @property
    def spare_bytes(self) -> int:
        """Bytes of a GPU that the static fraction reserves for the cache but `max-total-tokens` leaves unused."""
        if self.memory is None or self.cache is None or self.cache.tokens is None:
            return 0
        requests = self.cache.requests.bytes if self.cache.requests else 0
        spare = int(self.memory.cache_bytes - requests - self.cache.tokens * self.cache.actual_token_bytes)
        return (
            spare if spare >= self.cache.page * self.cache.actual_token_bytes else 0
        )  # a smaller rest is part of a page

    @property
    def reserved_bytes(self) -> int:
        """Bytes of a GPU used by neither weights nor cache."""
        memory = self.memory
        return 0 if memory is None else int(memory.free_bytes * (1 - memory.fraction)) + self.spare_bytes


def capacity_of(profile: Profile, facts: ServingFacts, load: Load | None) -> Capacity:
    """Compute the capacity of each DP rank of a profile; `facts` holds the meaning of its flags."""
    layout, model = profile.layout, profile.model
    tp, dp = layout.tp.value, layout.dp.value
    memory = None if profile.hardware.vendor == "cpu" else _memory(profile, facts, ranks=tp * facts.stages)
    unknown = _unknown_reasons(profile, facts)
    cache = None if unknown else _cache(profile, facts, memory)
    served = _load_fit(profile, facts, load, cache) if load and cache else None
    if model.mtp_layer is not None and facts.drafts is None and model.mtp_weights_size is None:
        unknown.append("the size of the MTP layer is unknown: the weights include it, although it is not loaded")
    if facts.drafts is not None and facts.drafts.separate_model:
        unknown.append("the size of the draft model is unknown: the weights do not include it")
    capacity = Capacity(
        dp_ranks=dp * profile.replicas,
        gpus=(tp // dp if layout.dp_attention.value and tp % dp == 0 else tp) * facts.stages,
        memory=memory,
        cache=cache,
        load_fit=served,
        context=facts.context,
        max_tokens=facts.cache_tokens,
        unknown=tuple(unknown),
        host=_host_tier(facts, memory, cache),
    )
    if memory is None or not capacity.spare_bytes or capacity.reserved_bytes < memory.activation_bytes:
        return capacity
    # `max-total-tokens` limits the cache, even with a larger fraction
    return replace(capacity, memory=replace(memory, safe_fraction=_MAX_FRACTION))


def graph_requests(profile: Profile, facts: ServingFacts) -> int:
    """Return the largest batch for which sglang captures a graph."""
    return _activations(profile, facts, ranks=profile.layout.tp.value).graph_requests


def _unknown_reasons(profile: Profile, facts: ServingFacts) -> list[str]:
    """List the reasons why the size of a token in the cache is unknown."""
    model, reasons = profile.model, []
    if model.kv_cache is None:
        reasons.append("the model's file in profiles/models has no `kv_cache`; its comments may give the reason")
    elif model.kv_cache.head_dim is not None and (model.kv_heads or model.attention_heads) is None:
        reasons.append("the model's file in profiles/models has no `attention_heads`")
    if _windows(profile, facts) is not None and facts.window_pool_option:
        reasons.append(f"{facts.window_pool_option} is set: deploy cannot compute the size of the sliding-window cache")
    if _cache_type(profile, facts) is None:
        reasons.append(f"the size of a cache of type `{facts.kv_dtype}` is unknown")
    reason = unsized(profile, facts)
    return [*reasons, reason] if reason else reasons


def _windows(profile: Profile, facts: ServingFacts) -> SlidingWindow | None:
    """Return the sliding-window layers, if the engine has a separate pool for them."""
    cache = profile.model.kv_cache
    if cache is None or cache.sliding_layers is None or facts.window_ratio is None:
        return None
    return SlidingWindow(
        layers=math.ceil(cache.sliding_layers / facts.stages),
        window=cache.sliding_window or 0,
        ratio=facts.window_ratio,
    )


def _cache_type(profile: Profile, facts: ServingFacts) -> tuple[str, int] | None:
    sparse, arch = profile.model.sparse_attention, profile.hardware.arch
    return cache_type(facts.kv_dtype, sparse=sparse, arch=arch, dtype=facts.dtype)


def _memory(profile: Profile, facts: ServingFacts, *, ranks: int) -> Memory:
    vram, model = profile.hardware.vram, profile.model
    free = max(vram - _PROCESS - (_COLLECTIVES if ranks > 1 else 0), 0)
    weights = (model.weights_size - (0 if facts.drafts else model.mtp_weights_size or 0)) // ranks
    activations = _activations(profile, facts, ranks=ranks)
    fraction, source = facts.memory_fraction, "set"
    if fraction is None or not 0 < fraction < 1:  # `flag_values_are_valid` reports an invalid one
        fraction, source = default_mem_fraction(activations), "sglang's default"
    moe = model.moe
    needed = activation_bytes(
        activations,
        hidden=moe.hidden_size if moe else None,
        experts=moe.experts_per_token + moe.shared_experts if moe else 0,
    )
    return Memory(
        vram_bytes=vram,
        free_bytes=free,
        weights_bytes=weights,
        fraction=fraction,
        fraction_source=source,
        cache_bytes=int(free * fraction - weights),
        activation_bytes=needed,
        safe_fraction=max(math.floor((1 - needed / free) * 100) / 100, 0.0) if free else 0.0,
    )


def _activations(profile: Profile, facts: ServingFacts, *, ranks: int) -> ActivationSpec:
    cache = profile.model.kv_cache
    return ActivationSpec(
        vram=profile.hardware.vram,
        ranks=ranks,
        chunk=facts.prefill_batch,
        graph_batch=facts.graph_batch,
        prefill_graphs=facts.graph_batch != 0 and profile.engine.platform == "cuda",
        latent=cache is not None and cache.kv_lora_rank is not None,
        dp_attention=profile.layout.dp.value if profile.layout.dp_attention.value else 0,
    )


def _cache(profile: Profile, facts: ServingFacts, memory: Memory | None) -> KvCache:
    kind, element = _cache_type(profile, facts) or ("", 0)  # never None here: `unknown` is empty
    windows, shape = _windows(profile, facts), profile.model.kv_cache
    if shape is None:
        raise ValueError("the model has no `kv_cache`")
    size = token_size(profile, facts, shape, element=element, windows=windows)
    requests = request_memory(profile, facts, rest=max(memory.cache_bytes, 0)) if memory else None
    page, request_bytes = facts.page, requests.bytes if requests else 0
    fitting = None if memory is None else int(max(memory.cache_bytes - request_bytes, 0) // size.estimated)
    tokens = min((limit for limit in (fitting, facts.cache_tokens) if limit is not None), default=None)
    tokens = None if tokens is None else tokens // page * page
    return KvCache(
        kind=kind,
        page=page,
        token_bytes=size.estimated,
        actual_token_bytes=size.allocated,
        tokens=tokens,
        full_contexts=None if tokens is None else round(tokens / facts.context, 2),
        windows=windows,
        requests=requests,
        index_bytes=size.keys,
    )


def _host_tier(facts: ServingFacts, memory: Memory | None, cache: KvCache | None) -> HostTier | None:
    if facts.tiers is None:
        return None
    if cache is None:
        return facts.tiers.unknown_pool(device_bytes=max(memory.cache_bytes, 0) if memory else 0)
    return facts.tiers.host_pool(
        token_bytes=cache.actual_token_bytes,
        index_bytes=cache.index_bytes,
        tokens=cache.tokens,
        state_bytes=cache.requests.bytes if cache.requests else 0,
    )


def _load_fit(profile: Profile, facts: ServingFacts, load: Load, cache: KvCache) -> LoadFit:
    """Compute how many concurrent requests fit. Each takes whole pages, including space for its drafts."""
    drafts = facts.drafts
    prefix = int(load.input_tokens * load.cache_hit_rate) // cache.page * cache.page if facts.prefix_cache else 0
    tokens = load.input_tokens - prefix + load.output_tokens + (drafts.room if drafts else 0)
    tokens = math.ceil(tokens / cache.page) * cache.page
    shared, at_once = prefix * load.num_prefixes, None
    if cache.tokens is not None:  # if not all prefixes fit, each request has its own
        fewest = cache.tokens // (prefix + tokens)
        at_once = fewest if fewest < load.num_prefixes else (cache.tokens - shared) // tokens
    if at_once is not None and cache.windows is not None:
        verified = drafts.tokens if drafts is not None and drafts.tokens_are_set else 1
        at_once = min(at_once, (cache.window_tokens or 0) // min(tokens, cache.windows.needed(cache.page, verified)))
    if at_once is not None and cache.requests is not None:
        at_once = min(at_once, cache.requests.requests)
    running = running_requests(profile, facts)
    return LoadFit(
        load=load.name,
        tokens=tokens,
        shared_tokens=shared,
        num_prefixes=load.num_prefixes,
        concurrent=at_once,
        running=running,
        fits=at_once is None or at_once >= (running or 1),
    )


def context_shortage(capacity: Capacity, location: Callable[[str, str], str]) -> Iterator[Problem]:
    """Yield a problem if the cache of a DP rank is smaller than the context: sglang rejects longer requests.

    `location` gives `file:line` of a key. Source: sglang 0.5.16, srt/managers/tp_worker.py, max_req_len.
    """
    cap, page = capacity.max_tokens, capacity.cache.page if capacity.cache else 1
    tokens = cap if capacity.cache is None else capacity.cache.tokens
    if not tokens or tokens + page > capacity.context:
        return  # unknown, or no space at all, which `weights_fit` reports
    capped = cap is not None and tokens + page > cap
    key = Meaning.CACHE_TOKENS if capped else Meaning.CONTEXT
    raised = f"`flags.{Meaning.CACHE_TOKENS}`" if capped else f"`{Meaning.MEMORY_FRACTION}` or `layout.tp`"
    yield Problem(
        f"the cache of a DP rank holds {tokens:,} tokens, less than one request of the context of {capacity.context:,}",
        location("flags", key),
        f"raise {raised}, or set `flags.{Meaning.CONTEXT}` to {tokens:,} or less",
    )


def capacity_warnings(capacity: Capacity, role: str = "") -> Iterator[PlanWarning]:
    """Yield warnings that do not prevent a start: sglang queues requests, or runs out of memory later."""
    fit, memory, cache = capacity.load_fit, capacity.memory, capacity.cache
    subject, layout = (f"{role}: ", f"layout.{role}") if role else ("", "layout")
    if fit is not None and cache is not None and not fit.fits:
        running, fitting = fit.running or 1, fit.concurrent or 0
        hint = f"raise `{layout}.tp` or `flags.{Meaning.CACHE_TOKENS}`, or use an 8-bit `{Meaning.CACHE_TYPE}`"
        requirement = f"{fit.needed(running):,} tokens of cache; a DP rank has {cache.tokens:,}"
        if cache.requests is not None and cache.requests.requests == fitting:  # tokens may be left
            requirement = f"a state of linear attention each; a DP rank has room for {fitting:,}"
            hint = f"raise `{Meaning.STATE_RATIO}` or `{Meaning.MEMORY_FRACTION}`, or draft fewer tokens"
        yield PlanWarning(
            id="capacity-requests",
            summary=(
                f"{subject}{f'{running:,} concurrent requests' if running > 1 else 'a request'} of `{fit.load}` "
                f"{'need' if running > 1 else 'needs'} {requirement}: "
                f"{f'{fitting:,} fit, the others wait' if fitting else 'none fits'}"
            ),
            source="estimate of `deploy show PROFILE --capacity`",
            hint=f"lower `{Meaning.RUNNING_REQUESTS}`{f' to {fitting}' if fitting else ''}, {hint}",
        )
    if memory is not None and memory.fraction_source == "set" and memory.fraction > memory.safe_fraction:
        reserved = capacity.reserved_bytes
        yield PlanWarning(
            id="capacity-fraction",
            summary=(
                f"{subject}`{Meaning.MEMORY_FRACTION}` {memory.fraction:g} leaves {gb(reserved)} of a GPU free; "
                f"activations and graphs may need {gb(memory.activation_bytes)}"
            ),
            source="estimate of `deploy show PROFILE --capacity`",
            hint=f"`{Meaning.MEMORY_FRACTION}` {memory.safe_fraction:g}, or a smaller `{Meaning.PREFILL_CHUNK}`",
        )
