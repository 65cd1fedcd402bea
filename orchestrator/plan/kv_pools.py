"""The sizes of a DP rank's pools on one GPU for each kind of attention: cached tokens, and states of requests."""

import math

from packaging.specifiers import SpecifierSet

from orchestrator.engine.memory import (
    IndexerKeys,
    KvCacheSpec,
    MhaCache,
    MlaCache,
    SlidingWindow,
    TokenBytes,
    default_chunk,
    head_index_bytes,
    is_raw,
    skips_shared_indexers,
    token_bytes,
)
from orchestrator.engine.request_memory import (
    EVICTION_VARIABLE,
    SOURCES_IN,
    UNIFIED_SINCE,
    CompressedCache,
    LinearState,
    RequestMemory,
    SourceCache,
    is_unified,
    is_unified_fp8,
    state_element,
    state_pool,
)
from orchestrator.engine.serving import ServingFacts
from orchestrator.profiles.schema import KvCacheSection, Profile


def token_size(
    profile: Profile, facts: ServingFacts, cache: KvCacheSection, *, element: int, windows: SlidingWindow | None
) -> TokenBytes:
    """Return the bytes of a token; `element` is the size of a value in bytes, `cache` the model's cache shape."""
    if (compressed := _sources(profile, facts, cache) or _compressed(profile, cache)) is not None:
        size = compressed.token_bytes(drafts=_draft_tokens(facts))
        return TokenBytes(estimated=size, allocated=size)
    layers = cache.attention_layers or profile.model.layers - (cache.linear.layers if cache.linear else 0)
    prefill, decode = facts.sparse_backends
    drafts = facts.drafts
    draft_layers = 1 if drafts is not None and not drafts.by_ngrams else 0
    return token_bytes(
        KvCacheSpec(
            attention=_attention(profile, cache),
            layers=math.ceil(layers / facts.stages),
            draft_layers=draft_layers,
            counted_drafts=draft_layers if cache.counts_draft or (drafts is not None and drafts.separate_model) else 0,
            ranks=attention_ranks(profile),
            element=element,
            raw=is_raw(platform=profile.engine.platform, arch=profile.hardware.arch, prefill=prefill, decode=decode),
            version=profile.engine.version,
            windows=windows,
            indexer=_indexer(profile, facts, cache, layers=layers),
        )
    )


def request_memory(profile: Profile, facts: ServingFacts, *, rest: int) -> RequestMemory | None:
    """Return the part of `rest` bytes that running requests use besides their tokens; None for no such memory."""
    cache, version = profile.model.kv_cache, profile.engine.version
    running, drafts = running_requests(profile, facts), _draft_tokens(facts)
    if cache is None:
        return None
    if cache.linear is not None:
        state = LinearState(**cache.linear.model_dump())
        size = state.bytes(ranks=attention_ranks(profile), element=state_element(facts.states, _env(profile)))
        return state_pool(size, facts.states, rest=rest, running=running, drafts=drafts, version=version)
    compressed = _sources(profile, facts, cache) or _compressed(profile, cache)
    return None if compressed is None or running is None else compressed.requests(running=running, drafts=drafts)


def running_requests(profile: Profile, facts: ServingFacts) -> int | None:
    """Return a rank's limit of concurrent requests; None if only memory limits them."""
    if facts.running is not None and profile.layout.dp_attention.value:
        return max(facts.running // profile.layout.dp.value, 1)
    return facts.running


def unsized(profile: Profile, facts: ServingFacts) -> str:
    """Return the reason why a token's size is unknown despite a known cache shape; "" if it is known."""
    cache, engine = profile.model.kv_cache, profile.engine
    if cache is None or cache.compressed is None:
        return ""
    if _keeps_sources(cache):
        supported = engine.platform == "rocm" and engine.version in SpecifierSet(SOURCES_IN)
        roles = "`layout.prefill`" if profile.layout.prefill is not None else ""
        variable = f"`{EVICTION_VARIABLE}`" if EVICTION_VARIABLE in profile.env else ""
        if supported and (setting := facts.source_window_option or roles or variable):
            return f"{setting} is set: deploy cannot compute the size of the windows of DeepSeek-V4.1"
        return "" if supported else f"the cache of DeepSeek-V4.1 is sized only on ROCm, for sglang {SOURCES_IN}"
    if is_unified(_env(profile), platform=engine.platform, version=engine.version):
        return ""
    return f"the compressed cache is sized only on ROCm with `unified_kv_triton`, since sglang {UNIFIED_SINCE}"


def attention_ranks(profile: Profile) -> int:
    """Return the number of GPUs that share a DP rank's attention heads."""
    tp, dp = profile.layout.tp.value, profile.layout.dp.value
    return tp // dp if profile.layout.dp_attention.value and tp % dp == 0 else tp


def _env(profile: Profile) -> dict[str, str]:
    return {name: str(setting.value) for name, setting in profile.env.items()}


def _draft_tokens(facts: ServingFacts) -> int:
    return 0 if facts.drafts is None else facts.drafts.tokens


def _keeps_sources(cache: KvCacheSection) -> bool:
    return cache.compressed is not None and cache.compressed.ratio_1 + cache.compressed.ratio_2 > 0


def _sources(profile: Profile, facts: ServingFacts, cache: KvCacheSection) -> SourceCache | None:
    compressed = cache.compressed
    if compressed is None or not _keeps_sources(cache):
        return None
    return SourceCache(
        layers=profile.model.layers,
        sources={1: compressed.ratio_1, 2: compressed.ratio_2},
        head_dim=cache.head_dim or 0,
        rope_dim=compressed.rope_dim,
        index_head_dim=cache.index_head_dim or 0,
        window=compressed.window,
        chunk=facts.prefill_chunk or default_chunk(profile.hardware.vram),
        ratio=facts.source_windows,
    )


def _compressed(profile: Profile, cache: KvCacheSection) -> CompressedCache | None:
    compressed = cache.compressed
    if compressed is None:
        return None
    return CompressedCache(
        layers=profile.model.layers,
        ratios={4: compressed.ratio_4, 128: compressed.ratio_128},
        head_dim=cache.head_dim or 0,
        rope_dim=compressed.rope_dim,
        index_head_dim=cache.index_head_dim or 0,
        window=compressed.window,
        fp8=is_unified_fp8(_env(profile), arch=profile.hardware.arch),
    )


def _indexer(profile: Profile, facts: ServingFacts, cache: KvCacheSection, *, layers: int) -> IndexerKeys | None:
    if cache.index_head_dim is None:
        return None
    if cache.kv_lora_rank is None:
        element = head_index_bytes(
            _env(profile), platform=profile.engine.platform, arch=profile.hardware.arch, version=profile.engine.version
        )
        return IndexerKeys(bytes=cache.index_head_dim * element, layers=cache.index_layers or layers)
    skips = skips_shared_indexers(profile.engine.version, plain=facts.plain_cache)
    owners = cache.index_layers if skips and cache.index_layers else layers
    return IndexerKeys.of_latent(
        cache.index_head_dim, pooled=cache.index_kpool or 1, layers=math.ceil(owners / facts.stages)
    )


def _attention(profile: Profile, cache: KvCacheSection) -> MhaCache | MlaCache:
    if cache.kv_lora_rank is not None and cache.qk_rope_head_dim is not None:
        return MlaCache(
            kv_lora_rank=cache.kv_lora_rank,
            qk_rope_head_dim=cache.qk_rope_head_dim,
            sparse=profile.model.sparse_attention,
        )
    width = cache.head_dim or 0
    heads = profile.model.kv_heads or profile.model.attention_heads or 0
    return MhaCache(heads=heads, head_dim=width, v_head_dim=cache.v_head_dim or width)
