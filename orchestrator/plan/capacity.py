"""What fits on a replica: tokens of its cache, requests of its own load, and how much memory may be given to both.

A computation beforehand, from the facts of the model, layout and flags; `orchestrator.engine.memory` names where each
rule of sglang's stands. Sizes are bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

from pydantic import Field

from orchestrator.core.validation import StrictModel, Text
from orchestrator.engine.memory import (
    GIB,
    ActivationSpec,
    KvCacheSpec,
    MhaCache,
    MlaCache,
    SlidingWindow,
    activation_bytes,
    cache_type,
    default_mem_fraction,
    is_raw,
    token_bytes,
)
from orchestrator.engine.options import Meaning
from orchestrator.engine.serving import ServingFacts
from orchestrator.plan.plan import PlanWarning
from orchestrator.profiles.schema import Profile

# Of a GPU, before weights: what its driver and sglang's process take, and with several ranks their collectives. Both
# measured with sglang 0.5.16 on one H200 and on two of 140 GiB: 139.09 and 138.28 GiB were free. Not measured on AMD's.
_PROCESS: Final = int(0.91 * GIB)
_COLLECTIVES: Final = int(0.81 * GIB)
_LARGEST: Final = 0.99  # static fraction


class Load(StrictModel):
    """The lengths of a workload, in tokens. Requests share `num_prefixes` prefixes of `cache_hit_rate` of an input."""

    name: Text
    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    cache_hit_rate: float = Field(default=0.0, ge=0, lt=1)
    num_prefixes: int = Field(default=1, ge=1)


@dataclass(frozen=True, kw_only=True)
class LoadFit:
    """How many requests of a load one replica's cache holds at once."""

    load: str
    tokens: int  # of one request, without what it shares
    shared_tokens: int  # of all prefixes, once
    at_once: int | None  # None: the size of the cache is not known beforehand
    running: int | None  # that the profile lets run at once in a replica, None where it does not say
    fits: bool  # as far as is known


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """The cache of one replica, a GPU's part of it. None where the start alone can tell."""

    kind: str
    page: int
    token_bytes: float  # by which sglang reckons; whole but for sliding windows
    held_bytes: float  # that a token really takes
    tokens: int | None
    full_contexts: float | None  # requests of the longest context
    windows: SlidingWindow | None = None  # layers that keep the last tokens alone

    @property
    def window_tokens(self) -> int | None:
        """The tokens of those layers' pool."""
        return None if self.windows is None or self.tokens is None else self.windows.tokens(self.tokens, self.page)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A GPU's memory, and who takes what of it."""

    vram_bytes: int
    free_bytes: int  # before weights are loaded
    weights_bytes: int
    fraction: float
    fraction_is: str  # `set`, or `sglang's own`
    cache_bytes: int  # at most 0: there is no room
    working_bytes: int  # that activations and graphs need
    safe_fraction: float  # the largest that leaves them that


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What fits. What could not be computed is None, and `unknown` says why."""

    replicas: int
    gpus: int  # of one replica
    memory: Memory | None  # None on a CPU, whose memory others share
    cache: KvCache | None
    served: LoadFit | None
    context: int  # the longest that is served
    most_tokens: int | None  # that the profile lets a replica's cache hold
    unknown: tuple[str, ...]

    @property
    def spare_bytes(self) -> int:
        """What the static fraction gives the cache of a GPU, and `max-total-tokens` leaves free."""
        if self.memory is None or self.cache is None or self.cache.tokens is None:
            return 0
        spare = int(self.memory.cache_bytes - self.cache.tokens * self.cache.held_bytes)
        return spare if spare >= self.cache.page * self.cache.held_bytes else 0  # else the rest of a page

    @property
    def kept_bytes(self) -> int:
        """What is kept free of a GPU beside weights and cache."""
        memory = self.memory
        return 0 if memory is None else int(memory.free_bytes * (1 - memory.fraction)) + self.spare_bytes

    def to_dict(self) -> dict[str, object]:
        """As plain JSON-able data."""
        return asdict(self)


def capacity_of(profile: Profile, facts: ServingFacts, load: Load | None) -> Capacity:
    """What fits on each replica of a profile; `facts` are what its flags mean."""
    layout, model = profile.layout, profile.model
    tp, dp = layout.tp.value, layout.dp.value
    memory = None if profile.hardware.vendor == "cpu" else _memory(profile, facts, ranks=tp * facts.stages)
    unknown = _unknown(profile, facts)
    cache = None if unknown else _cache(profile, facts, memory)
    served = _served(profile, facts, load, cache) if load and cache else None
    if model.mtp_layer is not None and facts.drafts is None and model.mtp_weights_size is None:
        unknown.append("the MTP layer is not loaded, and its part of the weights is not known: they are counted whole")
    if facts.drafts is not None and facts.drafts.own_model:
        unknown.append("the weights of the draft model are not known: they are not counted")
    found = Capacity(
        replicas=dp * profile.replicas,
        gpus=(tp // dp if layout.dp_attention.value and tp % dp == 0 else tp) * facts.stages,
        memory=memory,
        cache=cache,
        served=served,
        context=facts.context,
        most_tokens=facts.cache_tokens,
        unknown=tuple(unknown),
    )
    if memory is None or not found.spare_bytes or found.kept_bytes < memory.working_bytes:
        return found
    return replace(found, memory=replace(memory, safe_fraction=_LARGEST))  # more of it makes the cache no larger


def graph_requests(profile: Profile, facts: ServingFacts) -> int:
    """The largest batch for which sglang makes a graph."""
    return _working(profile, facts, ranks=profile.layout.tp.value).graph_requests


def _unknown(profile: Profile, facts: ServingFacts) -> list[str]:
    """Why the size of a token is not known."""
    model, why = profile.model, []
    if model.kv_cache is None:
        why.append(
            "the model's file does not say what its cache holds: `kv_cache` in profiles/models; where `deploy add "
            "model` left it out, its comments say why"
        )
    elif model.kv_cache.head_dim is not None and (model.kv_heads or model.attention_heads) is None:
        why.append("the model's file does not say how many heads it has: `attention_heads` in profiles/models")
    if _windows(profile, facts) is not None and facts.window_pool_option:
        why.append(
            f"{facts.window_pool_option}: how large sglang makes the cache of sliding windows then is not computed here"
        )
    if _type(profile, facts) is None:
        why.append(f"what a cache of type `{facts.kv_dtype}` takes is not known here")
    return why


def _windows(profile: Profile, facts: ServingFacts) -> SlidingWindow | None:
    """The layers with a sliding window, as far as the engine keeps a pool for them."""
    cache = profile.model.kv_cache
    if cache is None or cache.sliding_layers is None or facts.window_ratio is None:
        return None
    return SlidingWindow(
        layers=math.ceil(cache.sliding_layers / facts.stages),
        window=cache.sliding_window or 0,
        ratio=facts.window_ratio,
    )


def _type(profile: Profile, facts: ServingFacts) -> tuple[str, int] | None:
    return cache_type(
        facts.kv_dtype,
        sparse=profile.model.sparse_attention,
        arch=profile.hardware.arch,
        dtype=facts.dtype,
    )


def _memory(profile: Profile, facts: ServingFacts, *, ranks: int) -> Memory:
    vram, model = profile.hardware.vram, profile.model
    free = max(vram - _PROCESS - (_COLLECTIVES if ranks > 1 else 0), 0)
    loaded = model.weights_size - (0 if facts.drafts else model.mtp_weights_size or 0)
    weights = loaded // ranks
    working = _working(profile, facts, ranks=ranks)
    fraction, said = facts.memory_fraction, "set"
    if fraction is None or not 0 < fraction < 1:  # that it is none is said by another rule
        fraction, said = default_mem_fraction(working), "sglang's own"
    moe = model.moe
    needed = activation_bytes(
        working,
        hidden=moe.hidden_size if moe else None,
        experts=moe.experts_per_token + moe.shared_experts if moe else 0,
    )
    return Memory(
        vram_bytes=vram,
        free_bytes=free,
        weights_bytes=weights,
        fraction=fraction,
        fraction_is=said,
        cache_bytes=int(free * fraction - weights),
        working_bytes=needed,
        safe_fraction=max(math.floor((1 - needed / free) * 100) / 100, 0.0) if free else 0.0,
    )


def _working(profile: Profile, facts: ServingFacts, *, ranks: int) -> ActivationSpec:
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
    model, layout = profile.model, profile.layout
    kind, element = _type(profile, facts) or ("", 0)  # that there is one has been asked
    windows = _windows(profile, facts)
    shared = layout.dp_attention.value and layout.tp.value % layout.dp.value == 0
    prefill, decode = facts.sparse_backends
    size = token_bytes(
        KvCacheSpec(
            attention=_attention(profile),
            layers=math.ceil(model.layers / facts.stages),
            draft_layers=1 if facts.drafts is not None and not facts.drafts.by_ngrams else 0,
            ranks=layout.tp.value // layout.dp.value if shared else layout.tp.value,
            element=element,
            raw=is_raw(
                platform=profile.engine.platform,
                arch=profile.hardware.arch,
                prefill=prefill,
                decode=decode,
            ),
            version=profile.engine.version,
            windows=windows,
        )
    )
    page = facts.page
    fitting = None if memory is None else int(max(memory.cache_bytes, 0) // size.planned)
    limits = (fitting, facts.cache_tokens)
    tokens = min((limit for limit in limits if limit is not None), default=None)
    tokens = None if tokens is None else tokens // page * page
    return KvCache(
        kind=kind,
        page=page,
        token_bytes=size.planned,
        held_bytes=size.held,
        tokens=tokens,
        full_contexts=None if tokens is None else round(tokens / facts.context, 2),
        windows=windows,
    )


def _attention(profile: Profile) -> MhaCache | MlaCache:
    cache = profile.model.kv_cache
    if cache is None:
        raise ValueError("the model's cache is not known")
    if cache.kv_lora_rank is not None and cache.qk_rope_head_dim is not None:
        return MlaCache(
            kv_lora_rank=cache.kv_lora_rank,
            qk_rope_head_dim=cache.qk_rope_head_dim,
            index_head_dim=cache.index_head_dim if profile.model.sparse_attention else None,
        )
    width = cache.head_dim or 0
    heads = profile.model.kv_heads or profile.model.attention_heads or 0
    return MhaCache(heads=heads, head_dim=width, v_head_dim=cache.v_head_dim or width)


def _served(profile: Profile, facts: ServingFacts, load: Load, cache: KvCache) -> LoadFit:
    """Requests at once, and whether as many may run. Each has whole pages of its own, and room for its drafts."""
    drafts = facts.drafts
    prefix = int(load.input_tokens * load.cache_hit_rate) // cache.page * cache.page if facts.prefix_cache else 0
    tokens = load.input_tokens - prefix + load.output_tokens + (drafts.room if drafts else 0)
    tokens = math.ceil(tokens / cache.page) * cache.page
    shared = prefix * load.num_prefixes
    at_once = None if cache.tokens is None else max(cache.tokens - shared, 0) // tokens
    if at_once is not None and cache.windows is not None:
        verified = drafts.tokens if drafts is not None and drafts.tokens_are_set else 1
        at_once = min(at_once, (cache.window_tokens or 0) // min(tokens, cache.windows.needed(cache.page, verified)))
    running = facts.running
    if running and profile.layout.dp_attention.value:
        running = max(running // profile.layout.dp.value, 1)
    return LoadFit(
        load=load.name,
        tokens=tokens,
        shared_tokens=shared,
        at_once=at_once,
        running=running,
        fits=at_once is None or at_once >= (running or 1),
    )


def capacity_warnings(capacity: Capacity) -> Iterator[PlanWarning]:
    """What does not fit, and is no reason to refuse a start: sglang lets requests wait, or runs out of memory later."""
    served, memory, cache = capacity.served, capacity.memory, capacity.cache
    if served is not None and cache is not None and not served.fits:
        running, fitting = served.running or 1, served.at_once or 0
        needed = running * served.tokens + served.shared_tokens
        capped = capacity.most_tokens is not None and capacity.most_tokens - cache.page < (cache.tokens or 0)
        yield PlanWarning(
            id="capacity-requests",
            summary=(
                f"{f'{running:,} requests' if running > 1 else 'a request'} of `{served.load}` "
                f"{'at once need' if running > 1 else 'needs'} {needed:,} tokens of a replica's cache, which holds "
                f"{cache.tokens:,}: {f'{fitting:,} fit, the others wait' if fitting else 'none fits'}"
            ),
            source="computed beforehand: `deploy show --capacity`",
            hint=", or ".join(_ways_to_fit(cache, fitting=fitting, capped=capped)),
        )
    if capacity.most_tokens is not None and capacity.most_tokens < capacity.context:
        yield PlanWarning(
            id="capacity-context",
            summary=(
                f"`{Meaning.CACHE_TOKENS}` {capacity.most_tokens:,} is less than one context of {capacity.context:,} "
                "tokens: longer requests are refused"
            ),
            source="sglang 0.5.16, srt/managers/tp_worker.py, max_req_len",
            hint=f"raise `flags.{Meaning.CACHE_TOKENS}`, or set `flags.{Meaning.CONTEXT}` to what is to be served",
        )
    if memory is not None and memory.fraction_is == "set" and memory.fraction > memory.safe_fraction:
        kept = capacity.kept_bytes
        yield PlanWarning(
            id="capacity-fraction",
            summary=(
                f"`{Meaning.MEMORY_FRACTION}` {memory.fraction:g} keeps {kept / 1e9:.1f} GB of a GPU beside weights "
                f"and cache; activations and graphs may need {memory.working_bytes / 1e9:.1f} GB"
            ),
            source="computed beforehand: `deploy show --capacity`",
            hint=f"`{Meaning.MEMORY_FRACTION}` {memory.safe_fraction:g}, or a smaller `{Meaning.PREFILL_CHUNK}`",
        )


def _ways_to_fit(cache: KvCache, *, fitting: int, capped: bool) -> Iterator[str]:
    """What lets more requests of a load run at once, or asks for fewer; `capped` by its own limit."""
    if fitting:
        yield f"lower `{Meaning.RUNNING_REQUESTS}` to {fitting}"
    if capped:
        yield f"raise `flags.{Meaning.CACHE_TOKENS}`"
        return
    if not cache.kind.startswith("fp8"):
        yield f"take an 8-bit `{Meaning.CACHE_TYPE}`"
    yield "raise `layout.tp`"
