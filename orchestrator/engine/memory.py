"""The division of GPU memory by sglang: bytes of a token in the KV cache, tokens that fit, and the reserve.

Source: sglang's wheels 0.5.14 to 0.5.23, below `sglang/srt/`; line numbers are those of 0.5.16. Sizes are bytes of one
GPU. A rank measures the free memory F before it loads the model. The cache then gets the free memory after loading,
minus F * (1 - the static fraction) (mem_cache/kv_cache_configurator.py:1527, `_profile_available_bytes`; 0.5.14:
model_executor/model_runner_kv_cache_mixin.py:87). This size divided by the bytes of a token, in whole pages, is
`max_total_num_tokens` (model_executor/pool_configurator.py:287).

Sliding windows: layers with a window have a separate pool of `swa_full_tokens_ratio` times the tokens of the other
layers; `max_total_num_tokens` counts only the other layers (pool_configurator.py:297, `HybridSWAPoolConfigurator`).

`engine.request_memory` has the memory per request, independent of its length. Not supported: window pools sized by
requests (`SWAChunkCapPoolConfigurator`, :457), window layers with heads of another shape, FP4 caches.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.engine.versions import is_since

MIB: Final = 1 << 20
GIB: Final = 1 << 30
DSA_PAGE: Final = 64  # tokens per page with sparse attention; arg_groups/overrides.py:402

_BYTES_OF: Final[Mapping[str, int]] = {"bf16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_FLOAT32: Final = ("float", "float32")  # model types of four bytes; all others have two
_SCALED_GROUP: Final = 128  # values with a common scale of four bytes; memory_pool.py:4211, `quant_block_size`
_SCALE: Final = 4  # bytes
_ROPE_BYTES: Final = 2  # the rotary part of an fp8 cache stays bfloat16; memory_pool.py:4213
_COUNTS_SCALES: Final = "0.5.17"  # the first whose `_compute_cell_size` counts the scales of the pool
_FP8_INDEX_SINCE: Final = "0.5.21"
_FP8_INDEX: Final = "SGLANG_OPT_MINIMAX_M3_FP8_INDEX_CACHE"
ON: Final = ("1", "true", "yes", "y")  # true values of a variable; environ.py, EnvBool
_SKIPS_PLAIN: Final = "0.5.18"
_SKIPS_ALWAYS: Final = "0.5.22"
_COUNTS_WINDOW_DRAFTS: Final = "0.5.15"  # the first to count draft layers of a model with windows
_EVICTION: Final = 128  # tokens between two evictions from windows; environ.py, SGLANG_SWA_EVICTION_INTERVAL
WINDOW_RATIO: Final = 0.8  # server_args.py:795; 0.5.23: arg_groups/fields/schedule.py:150
_RAW_BACKENDS: Final = ("tilelang", "aiter", "triton")  # on ROCm: no scales; kv_cache_configurator.py:1844, 0.5.23:3444
_MIN_RESERVE: Final = 10 * GIB  # on a GPU of more than 60 GiB; server_args.py:4085


@dataclass(frozen=True, kw_only=True)
class MhaCache:
    """The KV cache of attention with keys and values per head (MHA, GQA, MQA); sizes for the whole model."""

    heads: int
    head_dim: int
    v_head_dim: int

    def bytes(self, element: int, *, ranks: int) -> int:
        """Return the bytes of a token in one layer; `element` is the size of a value in bytes.

        If there are fewer heads than ranks, heads are replicated (configs/model_config.py:1080).
        """
        return max(1, self.heads // ranks) * (self.head_dim + self.v_head_dim) * element


@dataclass(frozen=True, kw_only=True)
class MlaCache:
    """The KV cache of latent attention (MLA), complete on every rank."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    sparse: bool  # DSA

    def estimated(self, element: int) -> int:
        """Return the bytes of a token in one layer as estimated by sglang up to 0.5.16 (pool_configurator.py:185)."""
        return (self.kv_lora_rank + self.qk_rope_head_dim) * element

    def allocated(self, element: int, *, raw: bool) -> int:
        """Return the bytes of a token in one layer that the pool allocates.

        Source: kv_cache_configurator.py:1816, `calculate_mla_kv_cache_dim`.
        """
        if not self.sparse or element > 1 or raw:
            return self.estimated(element)
        scales = self.kv_lora_rank // _SCALED_GROUP * _SCALE
        return self.kv_lora_rank + scales + self.qk_rope_head_dim * _ROPE_BYTES


@dataclass(frozen=True, kw_only=True)
class IndexerKeys:
    """The keys of a sparse indexer: bytes of a token in one layer, and the number of layers with their own indexer."""

    bytes: int
    layers: int

    @classmethod
    def of_latent(cls, width: int, *, pooled: int, layers: int) -> "IndexerKeys":
        """Return the keys of DSA: one byte per value and a scale per group, for any cache type (memory_pool.py:4272).

        `pooled` tokens share a key (0.5.23: pool_configurator.py, `_compute_dsa_indexer_cell_size`).
        """
        return cls(bytes=-(-(width + width // _SCALED_GROUP * _SCALE) // pooled), layers=layers)


def head_index_bytes(env: Mapping[str, str], *, platform: str, arch: str, version: str) -> int:
    """Return the bytes of a value in MiniMax-M3's index keys: bfloat16, but FP8 on gfx950 since 0.5.21.

    Source: wheels 0.5.20 to 0.5.23, mem_cache/memory_pool.py, `get_minimax_sparse_index_dtype`.
    """
    small = platform == "rocm" and arch.startswith("gfx95") and is_since(version, _FP8_INDEX_SINCE)
    return 1 if small and env.get(_FP8_INDEX, "true").lower() in ON else 2


def skips_shared_indexers(version: str, *, plain: bool) -> bool:
    """Return whether layers that reuse another layer's indexer store no keys.

    `plain`: neither a host cache nor disaggregation. Source: 0.5.18 to 0.5.23, mem_cache/kv_cache_configurator.py,
    `_should_elide_dsa_index_k`; absent from 0.5.17.
    """
    return is_since(version, _SKIPS_ALWAYS) or (is_since(version, _SKIPS_PLAIN) and plain)


@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Layers that keep only the last tokens, and the size of their pool relative to that of the other layers."""

    layers: int
    window: int  # tokens
    ratio: float  # `swa-full-tokens-ratio`

    def tokens(self, full: int, page: int) -> int:
        """Return the tokens of the window pool if the other layers' pool has `full` (pool_configurator.py:425)."""
        return int(full * self.ratio) // page * page

    def needed(self, page: int, drafts: int) -> int:
        """Return the maximum tokens of a running request in the window pool (pool_configurator.py:482).

        A request keeps tokens until the next eviction, in whole pages.
        """
        return self.window + _EVICTION * drafts + 2 * page


@dataclass(frozen=True, kw_only=True)
class TokenBytes:
    """Bytes of a token on one GPU, in all layers and draft layers: sglang's estimate, and the pools' actual size."""

    estimated: float  # like `allocated`, an integer without sliding windows
    allocated: float
    keys: float = 0  # an indexer's share of `allocated`


@dataclass(frozen=True, kw_only=True)
class KvCacheSpec:
    """The parameters of a KV cache that determine the bytes of a token."""

    attention: MhaCache | MlaCache
    layers: int
    draft_layers: int
    counted_drafts: int  # draft layers that sglang counts for the size of the cache
    ranks: int  # GPUs that share the heads of one DP rank
    element: int  # bytes of a value
    raw: bool  # sparse attention stores fp8 values without scales
    version: str
    windows: SlidingWindow | None = None
    indexer: IndexerKeys | None = None


def token_bytes(needs: KvCacheSpec) -> TokenBytes:
    """Return the bytes of a token in target and draft. Raises TypeError for latent attention with sliding windows.

    Counted draft layers count like target layers (pool_configurator.py:138).
    """
    attention, layers = needs.attention, needs.layers
    if needs.windows is not None:
        return _with_windows(needs, needs.windows)
    if isinstance(attention, MhaCache):
        estimated = allocated = attention.bytes(needs.element, ranks=needs.ranks)
    else:
        allocated = attention.allocated(needs.element, raw=needs.raw)
        estimated = allocated if is_since(needs.version, _COUNTS_SCALES) else attention.estimated(needs.element)
    drafts, counted_drafts = needs.draft_layers, needs.counted_drafts
    keys = 0 if needs.indexer is None else needs.indexer.bytes * (needs.indexer.layers + drafts)
    return TokenBytes(
        estimated=int(estimated * layers * (1 + counted_drafts / layers)) + keys,
        allocated=allocated * (layers + drafts) + keys,
        keys=keys,
    )


def _with_windows(needs: KvCacheSpec, windows: SlidingWindow) -> TokenBytes:
    """Return the bytes of a token in full layers, plus its share of the window pool (pool_configurator.py:93)."""
    if isinstance(needs.attention, MlaCache):
        raise TypeError("a latent has no sliding windows here")
    item = needs.attention.bytes(needs.element, ranks=needs.ranks)
    full, share = needs.layers - windows.layers, windows.ratio * item * windows.layers
    counted_layers = full + (needs.draft_layers if is_since(needs.version, _COUNTS_WINDOW_DRAFTS) else 0)
    return TokenBytes(estimated=item * counted_layers + share, allocated=item * (full + needs.draft_layers) + share)


def cache_type(kind: str | None, *, sparse: bool, arch: str, dtype: str | None) -> tuple[str, int] | None:
    """Return the type of the cache and the bytes of a value; None if the pool size for the type is unknown.

    `auto` means the model's own type, or FP8 for sparse attention from NVIDIA's sm100 on (overrides.py:1235). Cache
    quantization settings in a checkpoint are ignored.
    """
    if kind is not None and kind != "auto":
        return (kind, _BYTES_OF[kind]) if kind in _BYTES_OF else None
    if sparse and (match := re.fullmatch(r"sm([0-9]+)[0-9][a-z]?", arch)) and int(match[1]) >= 10:
        return "fp8_e4m3", 1
    return ("float32", 4) if dtype in _FLOAT32 else ("bfloat16", 2)


def is_raw(*, platform: str, arch: str, prefill: str | None, decode: str | None) -> bool:
    """Return whether sparse attention caches FP8 values without scales (kv_cache_configurator.py:1830).

    The default backend is tilelang on ROCm and trtllm on sm100 (arg_groups/overrides.py:1289).
    """
    chosen = {prefill, decode}
    if platform == "rocm":
        return chosen == {None} or bool(chosen & set(_RAW_BACKENDS))
    return "trtllm" in chosen or (None in chosen and arch.startswith("sm10"))


@dataclass(frozen=True, kw_only=True)
class ActivationSpec:
    """The parameters that determine the memory of activations and graphs. None stands for sglang's default."""

    vram: int  # bytes of one GPU
    ranks: int
    chunk: int | None  # tokens; -1 for no chunking
    graph_batch: int | None  # requests; 0 for no graphs
    prefill_graphs: bool
    latent: bool
    dp_attention: int  # DP ranks of the attention, 0 for none

    @property
    def chunk_tokens(self) -> int:
        """The tokens of a prefill chunk: as set, or sglang's default for this GPU size."""
        if self.chunk is not None:
            return max(self.chunk, 2048)
        return default_chunk(self.vram)

    @property
    def graph_requests(self) -> int:
        """The largest batch of a graph: as set, or sglang's default for this GPU size (server_args.py:3927)."""
        if self.graph_batch is not None:
            return self.graph_batch
        few, many = next((sizes for above, sizes in _BATCHES if self.vram >= above), (8, 8))
        return few if self.ranks < 4 else many

    @property
    def graphs(self) -> int:
        """The bytes that sglang reserves for graphs (server_args.py:4164, `reserve_for_graph_mb`)."""
        batch = self.graph_requests
        needed = batch * 2.0 + batch * self.dp_attention * (3 if batch <= 300 else 4.5)
        if self.prefill_graphs:
            needed += 1536 if self.latent else 8 * sum(size <= self.chunk_tokens for size in _PREFILL_SIZES)
        return int(needed * MIB)


_CHUNKS: Final = ((160 * GIB, 16384), (60 * GIB, 8192), (35 * GIB, 4096))
_BATCHES: Final = (
    (160 * GIB, (512, 512)), (60 * GIB, (256, 512)), (35 * GIB, (32, 160)), (20 * GIB, (24, 80)),
)  # fmt: skip
_PREFILL_SIZES: Final = (  # server_args.py:4265
    *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
    *range(4608, 1 << 18, 512),
)  # fmt: skip


def default_chunk(vram: int) -> int:
    """Return sglang's default prefill chunk for this GPU size, in tokens (server_args.py:3927)."""
    return next((size for above, size in _CHUNKS if vram >= above), 2048)


def default_mem_fraction(spec: ActivationSpec) -> float:
    """Return sglang's default static memory fraction (server_args.py:4054; 0.5.14:3276)."""
    reserved = 512 * MIB + spec.chunk_tokens * 1.5 * MIB + spec.ranks * 128 * MIB + spec.graphs
    if spec.vram > 60 * GIB:
        reserved = max(reserved, _MIN_RESERVE)
    return round(max(spec.vram - reserved, 0) / max(spec.vram, 1), 3)


def activation_bytes(spec: ActivationSpec, *, hidden: int | None, experts: int) -> int:
    """Estimate the bytes that startup and a full prefill chunk need besides weights and cache.

    `hidden` is the model's hidden size, None if unknown; `experts` is the number of experts per token.

    The estimate is conservative. sglang's rule of thumb, 1.5 MiB per token of a chunk, gives 192 GiB for 131072 tokens,
    although such a chunk runs in less than 58 GiB. If the hidden size is known, a token takes three bfloat16 rows of
    that size per expert, plus four. Graphs and constants are added, at least the 10 GiB that sglang reserves on a GPU
    of more than 60 GiB. One public report confirms the rule: GLM-5.2 at TP8 on MI355X with chunks of 131072 lacks
    1.7 GiB if 43 GiB are kept free, and serves if 57 GiB are (InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh); the rule
    gives 56.5 GiB.
    """
    by_rule = 1.5 * MIB
    token = by_rule if hidden is None else min(by_rule, (3 * experts + 4) * hidden * 2)
    constant = 512 * MIB + spec.ranks * 128 * MIB + spec.graphs
    if spec.vram > 60 * GIB:
        constant = max(constant, _MIN_RESERVE)
    return int(constant + spec.chunk_tokens * token)
