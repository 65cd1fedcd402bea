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
from orchestrator.engine.flag_checks import Arguments
from orchestrator.engine.memory import (
    DSA_PAGE,
    GIB,
    WINDOW_RATIO,
    CacheNeeds,
    Heads,
    Latent,
    Windows,
    Working,
    cache_type,
    default_fraction,
    is_raw,
    token_bytes,
    working_bytes,
)
from orchestrator.plan.plan import Hazard
from orchestrator.profiles.schema import Profile

# Of a GPU, before weights: what its driver and sglang's process take, and with several ranks their collectives. Both
# measured with sglang 0.5.16 on one H200 and on two of 140 GiB: 139.09 and 138.28 GiB were free. Not measured on AMD's.
_PROCESS: Final = int(0.91 * GIB)
_COLLECTIVES: Final = int(0.81 * GIB)
_PREFILL: Final = 16384  # tokens of one batch, where nobody says: `max_prefill_tokens`
_LARGEST: Final = 0.99  # static fraction
_SPECULATING: Final = 48  # running requests, where nobody says; 0.5.14 arg_groups/speculative_hook.py:271


class Load(StrictModel):
    """The lengths of a workload, in tokens. `cached_share` of an input is one of `prefixes`, which requests share."""

    name: Text
    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    cached_share: float = Field(default=0.0, ge=0, lt=1)
    prefixes: int = Field(default=1, ge=1)


@dataclass(frozen=True, kw_only=True)
class Served:
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
    windows: Windows | None = None  # layers that keep the last tokens alone

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
    served: Served | None
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


def capacity_of(profile: Profile, given: Arguments, load: Load | None) -> Capacity:
    """What fits on each replica of a profile; `given` are its flags."""
    layout, model = profile.layout, profile.model
    tp, dp = layout.tp.value, layout.dp.value
    stages = _count(given, "pp-size") or 1
    drafts = given.has("speculative-algorithm")
    memory = None if profile.hardware.vendor == "cpu" else _memory(profile, given, ranks=tp * stages, drafts=drafts)
    unknown = _unknown(profile, given)
    cache = None if unknown else _cache(profile, given, memory=memory, drafts=drafts)
    served = _served(profile, given, load, cache) if load and cache else None
    if model.mtp_layer is not None and not drafts and model.mtp_weights is None:
        unknown.append("the MTP layer is not loaded, and its part of the weights is not known: they are counted whole")
    if given.has("speculative-draft-model-path"):
        unknown.append("the weights of the draft model are not known: they are not counted")
    found = Capacity(
        replicas=dp * profile.replicas,
        gpus=(tp // dp if layout.dp_attention.value and tp % dp == 0 else tp) * stages,
        memory=memory,
        cache=cache,
        served=served,
        context=_context(profile, given),
        most_tokens=_count(given, "max-total-tokens"),
        unknown=tuple(unknown),
    )
    if memory is None or not found.spare_bytes or found.kept_bytes < memory.working_bytes:
        return found
    return replace(found, memory=replace(memory, safe_fraction=_LARGEST))  # more of it makes the cache no larger


def graph_requests(profile: Profile, given: Arguments) -> int:
    """The largest batch for which sglang makes a graph."""
    return _working(profile, given, ranks=profile.layout.tp.value).graph_requests


def _count(given: Arguments, name: str) -> int | None:
    """An option that counts; None where it is not set, or is no count: other rules say so."""
    number = given.number(name)
    return int(number) if number is not None and number >= 1 else None


def _context(profile: Profile, given: Arguments) -> int:
    return _count(given, "context-length") or profile.model.context_length


def _unknown(profile: Profile, given: Arguments) -> list[str]:
    """Why the size of a token is not known."""
    model, kind = profile.model, given.text("kv-cache-dtype")
    why = []
    if model.cache is None:
        why.append(
            "the model's file does not say what its cache holds: `cache` in profiles/models; where `deploy onboard "
            "model` left it out, its comments say why"
        )
    elif model.cache.head_dim is not None and (model.kv_heads or model.attention_heads) is None:
        why.append("the model's file does not say how many heads it has: `attention_heads` in profiles/models")
    if _windows(profile, given) is not None and (how := _sized_by_requests(given)):
        why.append(f"{how}: how large sglang makes the cache of sliding windows then is not computed here")
    if _type(profile, given) is None:
        why.append(f"what a cache of type `{kind}` takes is not known here")
    return why


def _windows(profile: Profile, given: Arguments) -> Windows | None:
    """The layers with a sliding window, as far as sglang keeps a pool for them (model_config.py:670)."""
    cache = profile.model.cache
    if cache is None or cache.sliding_layers is None or given.has("disable-hybrid-swa-memory"):
        return None
    ratio = given.number("swa-full-tokens-ratio")
    return Windows(
        layers=math.ceil(cache.sliding_layers / (_count(given, "pp-size") or 1)),
        window=cache.sliding_window or 0,
        ratio=WINDOW_RATIO if ratio is None else ratio,
    )


def _sized_by_requests(given: Arguments) -> str:
    """What makes sglang share out memory otherwise between windows and the rest; empty for nothing."""
    if given.has("enable-unified-memory"):
        return "`enable-unified-memory`"
    if given.has("disable-radix-cache") and given.has("max-running-requests"):
        return "`disable-radix-cache` with `max-running-requests`"
    return ""


def _type(profile: Profile, given: Arguments) -> tuple[str, int] | None:
    return cache_type(
        given.text("kv-cache-dtype"),
        sparse=profile.model.sparse_attention,
        arch=profile.hardware.arch,
        dtype=given.text("dtype"),
    )


def _memory(profile: Profile, given: Arguments, *, ranks: int, drafts: bool) -> Memory:
    vram, model = profile.hardware.vram, profile.model
    free = max(vram - _PROCESS - (_COLLECTIVES if ranks > 1 else 0), 0)
    loaded = model.weights - (0 if drafts else model.mtp_weights or 0)
    weights = loaded // ranks
    working = _working(profile, given, ranks=ranks)
    fraction, said = given.number("mem-fraction-static"), "set"
    if fraction is None or not 0 < fraction < 1:  # that it is none is said by another rule
        fraction, said = default_fraction(working), "sglang's own"
    moe = model.moe
    needed = working_bytes(
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


def _working(profile: Profile, given: Arguments, *, ranks: int) -> Working:
    cache, graphs = profile.model.cache, not given.has("disable-cuda-graph")
    whole = given.number("chunked-prefill-size") == -1
    batch = _count(given, "cuda-graph-max-bs-decode") or _count(given, "cuda-graph-max-bs")
    return Working(
        vram=profile.hardware.vram,
        ranks=ranks,
        chunk=_count(given, "max-prefill-tokens") or _PREFILL if whole else _count(given, "chunked-prefill-size"),
        graph_batch=batch if graphs else 0,
        prefill_graphs=graphs and profile.engine.platform == "cuda",
        latent=cache is not None and cache.kv_lora_rank is not None,
        dp_attention=profile.layout.dp.value if profile.layout.dp_attention.value else 0,
    )


def _cache(profile: Profile, given: Arguments, *, memory: Memory | None, drafts: bool) -> KvCache:
    model, layout = profile.model, profile.layout
    kind, element = _type(profile, given) or ("", 0)  # that there is one has been asked
    windows = _windows(profile, given)
    shared = layout.dp_attention.value and layout.tp.value % layout.dp.value == 0
    platform, arch = profile.engine.platform, profile.hardware.arch
    size = token_bytes(
        CacheNeeds(
            attention=_attention(profile),
            layers=math.ceil(model.layers / (_count(given, "pp-size") or 1)),
            draft_layers=1 if drafts and given.text("speculative-algorithm") != "NGRAM" else 0,
            ranks=layout.tp.value // layout.dp.value if shared else layout.tp.value,
            element=element,
            raw=is_raw(
                platform=platform,
                arch=arch,
                prefill=given.text("dsa-prefill-backend"),
                decode=given.text("dsa-decode-backend"),
            ),
            version=profile.engine.version,
            windows=windows,
        )
    )
    page = DSA_PAGE if model.sparse_attention else _count(given, "page-size") or 1
    fitting = None if memory is None else int(max(memory.cache_bytes, 0) // size.planned)
    limits = (fitting, _count(given, "max-total-tokens"))
    tokens = min((limit for limit in limits if limit is not None), default=None)
    tokens = None if tokens is None else tokens // page * page
    return KvCache(
        kind=kind,
        page=page,
        token_bytes=size.planned,
        held_bytes=size.held,
        tokens=tokens,
        full_contexts=None if tokens is None else round(tokens / _context(profile, given), 2),
        windows=windows,
    )


def _attention(profile: Profile) -> Heads | Latent:
    cache = profile.model.cache
    if cache is None:
        raise ValueError("the model's cache is not known")
    if cache.kv_lora_rank is not None and cache.qk_rope_head_dim is not None:
        return Latent(
            kv_lora_rank=cache.kv_lora_rank,
            qk_rope_head_dim=cache.qk_rope_head_dim,
            index_head_dim=cache.index_head_dim if profile.model.sparse_attention else None,
        )
    width = cache.head_dim or 0
    heads = profile.model.kv_heads or profile.model.attention_heads or 0
    return Heads(heads=heads, head_dim=width, v_head_dim=cache.v_head_dim or width)


def _served(profile: Profile, given: Arguments, load: Load, cache: KvCache) -> Served:
    """Requests at once, and whether as many may run. Each has whole pages of its own, and room for its drafts."""
    sharing = not given.has("disable-radix-cache")
    prefix = int(load.input_tokens * load.cached_share) // cache.page * cache.page if sharing else 0
    tokens = load.input_tokens - prefix + load.output_tokens + _drafted(given)
    tokens = math.ceil(tokens / cache.page) * cache.page
    shared = prefix * load.prefixes
    at_once = None if cache.tokens is None else max(cache.tokens - shared, 0) // tokens
    if at_once is not None and cache.windows is not None:
        drafts = _count(given, "speculative-num-draft-tokens") or 1
        at_once = min(at_once, (cache.window_tokens or 0) // min(tokens, cache.windows.needed(cache.page, drafts)))
    running = _count(given, "max-running-requests") or (_SPECULATING if given.has("speculative-algorithm") else None)
    if running and profile.layout.dp_attention.value:
        running = max(running // profile.layout.dp.value, 1)
    return Served(
        load=load.name,
        tokens=tokens,
        shared_tokens=shared,
        at_once=at_once,
        running=running,
        fits=at_once is None or at_once >= (running or 1),
    )


def _drafted(given: Arguments) -> int:
    """Tokens that a request takes beyond those it has: sglang's own 3/1/4 where steps are not set."""
    if not given.has("speculative-algorithm"):
        return 0
    steps = _count(given, "speculative-num-steps") or 3
    topk = _count(given, "speculative-eagle-topk") or 1
    return max(steps * topk, _count(given, "speculative-num-draft-tokens") or steps + 1)


def capacity_hazards(capacity: Capacity) -> Iterator[Hazard]:
    """What does not fit, and is no reason to refuse a start: sglang lets requests wait, or runs out of memory later."""
    served, memory, cache = capacity.served, capacity.memory, capacity.cache
    if served is not None and cache is not None and not served.fits:
        running, fitting = served.running or 1, served.at_once or 0
        needed = running * served.tokens + served.shared_tokens
        capped = capacity.most_tokens is not None and capacity.most_tokens - cache.page < (cache.tokens or 0)
        yield Hazard(
            id="capacity-requests",
            what=(
                f"{f'{running:,} requests' if running > 1 else 'a request'} of `{served.load}` "
                f"{'at once need' if running > 1 else 'needs'} {needed:,} tokens of a replica's cache, which holds "
                f"{cache.tokens:,}: {f'{fitting:,} fit, the others wait' if fitting else 'none fits'}"
            ),
            source="computed beforehand: `deploy show --capacity`",
            hint=", or ".join(_ways_to_fit(cache, fitting=fitting, capped=capped)),
        )
    if capacity.most_tokens is not None and capacity.most_tokens < capacity.context:
        yield Hazard(
            id="capacity-context",
            what=(
                f"`max-total-tokens` {capacity.most_tokens:,} is less than one context of {capacity.context:,} tokens: "
                "longer requests are refused"
            ),
            source="sglang 0.5.16, srt/managers/tp_worker.py, max_req_len",
            hint="raise `flags.max-total-tokens`, or set `flags.context-length` to what is to be served",
        )
    if memory is not None and memory.fraction_is == "set" and memory.fraction > memory.safe_fraction:
        kept = capacity.kept_bytes
        yield Hazard(
            id="capacity-fraction",
            what=(
                f"`mem-fraction-static` {memory.fraction:g} keeps {kept / 1e9:.1f} GB of a GPU beside weights and "
                f"cache; activations and graphs may need {memory.working_bytes / 1e9:.1f} GB"
            ),
            source="computed beforehand: `deploy show --capacity`",
            hint=f"`mem-fraction-static` {memory.safe_fraction:g}, or a smaller `chunked-prefill-size`",
        )


def _ways_to_fit(cache: KvCache, *, fitting: int, capped: bool) -> Iterator[str]:
    """What lets more requests of a load run at once, or asks for fewer; `capped` by `max-total-tokens`."""
    if fitting:
        yield f"lower `max-running-requests` to {fitting}"
    if capped:
        yield "raise `flags.max-total-tokens`"
        return
    if not cache.kind.startswith("fp8"):
        yield "take an 8-bit `kv-cache-dtype`"
    yield "raise `layout.tp`"
