"""How sglang shares out a GPU's memory: what a token of its cache takes, how many tokens fit, what it keeps free.

Read in sglang's wheels 0.5.14 to 0.5.23, below `sglang/srt/`; lines are those of 0.5.16. Sizes are bytes of one GPU.
A rank measures what is free before it loads (F), loads, and gives the cache what is left of F above F * (1 - the static
fraction) (mem_cache/kv_cache_configurator.py:1527, `_profile_available_bytes`; 0.5.14: model_executor/
model_runner_kv_cache_mixin.py:87). That, divided by the bytes of a token, in whole pages, is `max_total_num_tokens`
(model_executor/pool_configurator.py:287).

Sliding windows: the layers that have one get a pool of their own, of `swa_full_tokens_ratio` times the tokens of the
others; `max_total_num_tokens` is the tokens of the others (pool_configurator.py:297, `HybridSWAPoolConfigurator`).

Left out: a pool of windows that is sized by requests (`SWAChunkCapPoolConfigurator`, :457), windows whose heads are of
another shape, the state of Mamba and linear attention, which a request takes once (kv_cache_configurator.py:1703,
`_handle_max_mamba_cache`), compressed attention, FP4 caches.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

MIB: Final = 1 << 20
GIB: Final = 1 << 30
DSA_PAGE: Final = 64  # tokens of a page with sparse attention; arg_groups/overrides.py:402

_BYTES_OF: Final[Mapping[str, int]] = {"bf16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_FLOAT32: Final = ("float", "float32")  # the model's types of four bytes; the others have two
_SCALED_GROUP: Final = 128  # values that share a scale of four bytes; memory_pool.py:4211, `quant_block_size`
_SCALE: Final = 4
_ROPE_BYTES: Final = 2  # beside fp8 values the rotary part stays bfloat16; memory_pool.py:4213
_COUNTS_SCALES: Final = Version("0.5.17")  # the first whose `_compute_cell_size` counts what the pool really takes
_COUNTS_WINDOW_DRAFTS: Final = Version("0.5.15")  # the first that counts what drafts beside windows
_EVICTION: Final = 128  # tokens between two evictions from windows; environ.py, SGLANG_SWA_EVICTION_INTERVAL
WINDOW_RATIO: Final = 0.8  # server_args.py:795; 0.5.23: arg_groups/fields/schedule.py:150
_RAW_BACKENDS: Final = ("tilelang", "aiter", "triton")  # on ROCm: no scales; kv_cache_configurator.py:1844, 0.5.23:3444
_LEAST_RESERVE: Final = 10 * GIB  # on a GPU of more than 60 GiB; server_args.py:4085


@dataclass(frozen=True, kw_only=True)
class MhaCache:
    """Attention with heads of keys and values of its own: MHA, GQA, MQA. For the whole model."""

    heads: int
    head_dim: int
    v_head_dim: int

    def bytes(self, element: int, *, ranks: int) -> int:
        """A token in one layer; with fewer heads than ranks each has a copy (configs/model_config.py:1080)."""
        return max(1, self.heads // ranks) * (self.head_dim + self.v_head_dim) * element


@dataclass(frozen=True, kw_only=True)
class MlaCache:
    """Latent attention (MLA), which every rank holds whole; with an indexer's keys where it is sparse (DSA)."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    index_head_dim: int | None

    def planned(self, element: int) -> int:
        """A token in one layer, as sglang reckons with until 0.5.16 (pool_configurator.py:185)."""
        return (self.kv_lora_rank + self.qk_rope_head_dim) * element + self._indexer

    def held(self, element: int, *, raw: bool) -> int:
        """A token in one layer, as its pool takes it (kv_cache_configurator.py:1816, `calculate_mla_kv_cache_dim`)."""
        if self.index_head_dim is None or element > 1 or raw:
            return self.planned(element)
        scales = self.kv_lora_rank // _SCALED_GROUP * _SCALE
        return self.kv_lora_rank + scales + self.qk_rope_head_dim * _ROPE_BYTES + self._indexer

    @property
    def _indexer(self) -> int:
        """Eight bits a value and a scale a group, whatever the cache's type (memory_pool.py:4272)."""
        width = self.index_head_dim or 0
        return width + width // _SCALED_GROUP * _SCALE


@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Layers that keep the last tokens alone, and how large their pool is beside that of the others."""

    layers: int
    window: int  # tokens
    ratio: float  # `swa-full-tokens-ratio`

    def tokens(self, full: int, page: int) -> int:
        """The tokens of their pool, where that of the others has `full` (pool_configurator.py:425)."""
        return int(full * self.ratio) // page * page

    def needed(self, page: int, drafts: int) -> int:
        """What a running request holds of it at most: until it is evicted, in pages (pool_configurator.py:482)."""
        return self.window + _EVICTION * drafts + 2 * page


@dataclass(frozen=True, kw_only=True)
class TokenBytes:
    """What a token takes on one GPU, in all layers and those that draft: as sglang reckons, and as its pools take."""

    planned: float  # both are whole numbers where no layer has a sliding window
    held: float


@dataclass(frozen=True, kw_only=True)
class KvCacheSpec:
    """What the size of a token follows from."""

    attention: MhaCache | MlaCache
    layers: int
    draft_layers: int
    ranks: int  # GPUs that share the heads of one replica
    element: int  # bytes of a value
    raw: bool  # sparse attention without scales beside fp8 values
    version: str
    windows: SlidingWindow | None = None


def token_bytes(needs: KvCacheSpec) -> TokenBytes:
    """A token of target and draft; the draft's layers count as the target's do (pool_configurator.py:138)."""
    attention, layers = needs.attention, needs.layers
    if needs.windows is not None:
        return _with_windows(needs, needs.windows)
    if isinstance(attention, MhaCache):
        planned = held = attention.bytes(needs.element, ranks=needs.ranks)
    else:
        held = attention.held(needs.element, raw=needs.raw)
        planned = held if Version(needs.version) >= _COUNTS_SCALES else attention.planned(needs.element)
    return TokenBytes(
        planned=int(planned * layers * (1 + needs.draft_layers / layers)), held=held * (layers + needs.draft_layers)
    )


def _with_windows(needs: KvCacheSpec, windows: SlidingWindow) -> TokenBytes:
    """A token of the layers that keep all, with its share of the windows' pool (pool_configurator.py:93)."""
    if isinstance(needs.attention, MlaCache):
        raise TypeError("a latent has no sliding windows here")
    each = needs.attention.bytes(needs.element, ranks=needs.ranks)
    full, share = needs.layers - windows.layers, windows.ratio * each * windows.layers
    counted = full + (needs.draft_layers if Version(needs.version) >= _COUNTS_WINDOW_DRAFTS else 0)
    return TokenBytes(planned=each * counted + share, held=each * (full + needs.draft_layers) + share)


def cache_type(kind: str | None, *, sparse: bool, arch: str, dtype: str | None) -> tuple[str, int] | None:
    """The cache's type and the bytes of a value; None for a type whose pools are not known here.

    `auto` is the model's own, and for sparse attention FP8 from NVIDIA's sm100 on (overrides.py:1235). A checkpoint
    that says itself how its cache is quantized is read as if it did not.
    """
    if kind is not None and kind != "auto":
        return (kind, _BYTES_OF[kind]) if kind in _BYTES_OF else None
    if sparse and (found := re.fullmatch(r"sm([0-9]+)[0-9][a-z]?", arch)) and int(found[1]) >= 10:
        return "fp8_e4m3", 1
    return ("float32", 4) if dtype in _FLOAT32 else ("bfloat16", 2)


def is_raw(*, platform: str, arch: str, prefill: str | None, decode: str | None) -> bool:
    """Whether FP8 values of sparse attention lie in the cache without scales (kv_cache_configurator.py:1830).

    Without a backend named, ROCm takes tilelang and sm100 trtllm (arg_groups/overrides.py:1289).
    """
    chosen = {prefill, decode}
    if platform == "rocm":
        return chosen == {None} or bool(chosen & set(_RAW_BACKENDS))
    return "trtllm" in chosen or (None in chosen and arch.startswith("sm10"))


@dataclass(frozen=True, kw_only=True)
class ActivationSpec:
    """What activations and graphs follow from. Zero turns a thing off; a chunk of -1 is none."""

    vram: int
    ranks: int
    chunk: int | None  # tokens
    graph_batch: int | None  # requests
    prefill_graphs: bool
    latent: bool
    dp_attention: int  # replicas of attention that share the ranks, 0 for none

    @property
    def chunk_tokens(self) -> int:
        """The chunk that is set, else what sglang takes for such a GPU (server_args.py:3927)."""
        if self.chunk is not None:
            return max(self.chunk, 2048)
        return next((size for above, size in _CHUNKS if self.vram >= above), 2048)

    @property
    def graph_requests(self) -> int:
        """The largest batch of a graph, set or taken by sglang (server_args.py:3927)."""
        if self.graph_batch is not None:
            return self.graph_batch
        few, many = next((sizes for above, sizes in _BATCHES if self.vram >= above), (8, 8))
        return few if self.ranks < 4 else many

    @property
    def graphs(self) -> int:
        """Bytes that sglang keeps for graphs (server_args.py:4164, `reserve_for_graph_mb`)."""
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


def default_mem_fraction(working: ActivationSpec) -> float:
    """The static fraction that sglang takes where none is set (server_args.py:4054; 0.5.14:3276)."""
    reserved = 512 * MIB + working.chunk_tokens * 1.5 * MIB + working.ranks * 128 * MIB + working.graphs
    if working.vram > 60 * GIB:
        reserved = max(reserved, _LEAST_RESERVE)
    return round(max(working.vram - reserved, 0) / max(working.vram, 1), 3)


def activation_bytes(working: ActivationSpec, *, hidden: int | None, experts: int) -> int:
    """What a start and a full chunk of prefill may need beside weights and cache; `experts`: those that a token takes.

    An estimate, on the safe side. sglang's rule of thumb is 1.5 MiB a token of a chunk: 192 GiB for 131072 tokens,
    which serve from less than 58 GiB. Where the model's shape is known, a token has three rows of the hidden size in
    bfloat16 for each of its experts and four of its own; beside them stand graphs and constants, at least the 10 GiB
    that sglang keeps of a GPU of more than 60. One public report bounds it: GLM-5.2 at TP8 on MI355X with chunks of
    131072 lacks 1.7 GiB where 43 are kept free, and serves where 57 are (InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh);
    by this rule it needs 56.5.
    """
    by_rule = 1.5 * MIB
    token = by_rule if hidden is None else min(by_rule, (3 * experts + 4) * hidden * 2)
    constant = 512 * MIB + working.ranks * 128 * MIB + working.graphs
    if working.vram > 60 * GIB:
        constant = max(constant, _LEAST_RESERVE)
    return int(constant + working.chunk_tokens * token)
