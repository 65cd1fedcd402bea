"""GPU memory per request in sglang, independent of its length: states of linear attention, rings of DeepSeek-V4.

Source: sglang's wheel 0.5.23, below `sglang/srt/`; 0.5.20 computes the same. Sizes are bytes of one GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.engine.memory import ON
from orchestrator.engine.versions import is_since

STATE_RATIO: Final = 0.9  # `mamba-full-memory-ratio`; arg_groups/fields/schedule.py
UNIFIED_SINCE: Final = "0.5.20"  # first version whose `DSV4PoolConfigurator` sizes the unified pool
_PADDED_SINCE: Final = "0.5.20"  # first version with a padding slot; 0.5.16: `_handle_max_mamba_cache`
_STATE_TYPES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONV: Final = 2  # bytes; configs/mamba_utils.py, `mamba2_state_dtype`: bfloat16
_FLOAT: Final = 4  # bytes of a compressor's state; environ.py, SGLANG_DSV4_COMPRESS_STATE_DTYPE
_UNIFIED: Final = ("SGLANG_HACK_FLASHMLA_BACKEND", "unified_kv_triton")
DSV4_PAGE: Final = 256  # tokens; 0.5.21, arg_groups/overrides.py
SOURCES_IN: Final = "<0.5.23,>=0.5.21"  # 0.5.23 chooses another layout on gfx950
_BLOCK: Final = 576  # bytes
_EVICTION: Final = 128  # tokens between two evictions from windows, unless the variable is set; environ.py
EVICTION_VARIABLE: Final = "SGLANG_SWA_EVICTION_INTERVAL"
_UNIFIED_FP8: Final = "SGLANG_DSV4_UNIFIED_KV_FP8"
_FP8_ROW: Final = 512  # bytes without the rotary part; mem_cache/deepseek_v4_memory_pool.py, `dsv4_unified_row_bytes`


@dataclass(frozen=True, kw_only=True)
class LinearState:
    """The layers with linear attention (GDN, KDA) or Mamba and the shape of their state, of the whole model."""

    layers: int
    key_heads: int
    value_heads: int
    head_dim: int
    conv_kernel: int
    key_dim: int | None = None  # None: same as `head_dim`

    def bytes(self, *, ranks: int, element: int) -> int:
        """Return the bytes of one state (configs/mamba_utils.py, `mamba_cache_per_req`, `Mamba2StateShape.create`)."""
        width = self.key_dim or self.head_dim
        groups = self.key_heads if self.key_heads % ranks == 0 else ranks  # each rank has at least one
        conv = (self.value_heads * self.head_dim + 2 * groups * width) // ranks * (self.conv_kernel - 1)
        return self.layers * (conv * _CONV + self.value_heads // ranks * self.head_dim * width * element)


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """The options that determine the number of states. None means sglang's default."""

    slots: int | None  # `max-mamba-cache-size`
    ratio: float  # `mamba-full-memory-ratio`
    dtype: str | None  # `mamba-ssm-dtype`
    per_request: int  # states of a running request
    replay: bool  # drafts have no separate states
    prefix_cache: bool


@dataclass(frozen=True, kw_only=True)
class RequestMemory:
    """Per-request memory on one GPU of a DP rank; `requests` is the maximum number of running requests."""

    per_request: int  # bytes of a state, or of a request
    slots: int
    requests: int
    bytes: int


def state_element(options: StateOptions, env: Mapping[str, str]) -> int:
    """Return the bytes of a value in a state: by variable, else by option, else float32, as in the models' configs."""
    return _STATE_TYPES.get(env.get("SGLANG_MAMBA_SSM_DTYPE", options.dtype or "float32"), 4)


def state_pool(
    state_bytes: int, options: StateOptions, *, rest: int, running: int | None, drafts: int, version: str
) -> RequestMemory:
    """Divide `rest` bytes between states and tokens (mem_cache/kv_cache_configurator.py, `_handle_max_mamba_cache`).

    `drafts` is the number of draft tokens, or 0; each running request has a state for each draft token.
    """
    padding = 1 if is_since(version, _PADDED_SINCE) else 0
    drafts = 0 if options.replay else drafts
    if options.slots is not None:
        slots = options.slots
    elif not options.prefix_cache and running is not None:
        slots = running
    else:
        budget = rest * options.ratio / (1 + options.ratio) - padding * state_bytes * (1 + drafts)
        slots = int(budget // (state_bytes * (1 + drafts / options.per_request)))
    slots = max(slots, 0)
    requests = min(slots // options.per_request, slots if running is None else running)
    return RequestMemory(
        per_request=state_bytes,
        slots=slots,
        requests=requests,
        bytes=state_bytes * ((slots + padding) + (requests + padding) * drafts),
    )


@dataclass(frozen=True, kw_only=True)
class CompressedCache:
    """The cache of DeepSeek-V4: layers by the number of tokens per entry, and a window in every layer."""

    layers: int
    ratios: Mapping[int, int]  # tokens per entry → layers
    head_dim: int
    rope_dim: int
    index_head_dim: int
    window: int
    fp8: bool

    @property
    def row(self) -> int:
        """Bytes of an entry in the unified pool (mem_cache/deepseek_v4_memory_pool.py, `dsv4_unified_row_bytes`)."""
        return _FP8_ROW + self.rope_dim * 2 if self.fp8 else self.head_dim * 2

    def token_bytes(self, *, drafts: int) -> float:
        """Return the bytes of a token (model_executor/pool_configurator.py, `DSV4PoolConfigurator`)."""
        index = self.index_head_dim + self.index_head_dim // 128 * 4
        item = {4: (self.row + index) / 4, 128: self.row / 128}
        return sum(item[ratio] * layers for ratio, layers in self.ratios.items()) * _inflation(self.layers, drafts)

    def requests(self, *, running: int, drafts: int) -> RequestMemory:
        """Return the memory of the running requests."""
        fixed = self._fixed_bytes(running=running, drafts=drafts)
        return RequestMemory(per_request=fixed // (running + 1), slots=running, requests=running, bytes=fixed)

    def _fixed_bytes(self, *, running: int, drafts: int) -> int:
        """Return the bytes of rings and compressors for `running` requests and one more slot.

        Source: as above, `_fixed_swa_bytes`, `_fixed_c4_state_bytes` and `_get_c128_state_fixed_bytes`.
        """
        slots, (four, many) = running + 1, (16, 256) if drafts else (8, 128)
        ring = slots * (self.window + max(drafts - 1, 0)) * self.row * self.layers
        rows4 = -(-(slots * four + four + 1) // 4) * 4
        rows128 = -(-(slots * many + many + 1) // 128) * 128
        states4 = rows4 * 4 * (self.head_dim + self.index_head_dim) * _FLOAT * self.ratios.get(4, 0)
        states128 = rows128 * 2 * self.head_dim * _FLOAT * self.ratios.get(128, 0)
        return int(ring * _inflation(self.layers, drafts)) + states4 + states128


@dataclass(frozen=True, kw_only=True)
class SourceCache:
    """The cache of DeepSeek-V4.1: entries in few layers, which the other layers read, and a window in every layer.

    Source: wheel 0.5.21, model_executor/pool_configurator.py, `DSV4PoolConfigurator`; 0.5.22 computes the same. Windows
    are sized by the running requests, or as a share of the tokens if `ratio` is set.
    """

    layers: int
    sources: Mapping[int, int]  # tokens per entry → layers
    head_dim: int
    rope_dim: int
    index_head_dim: int
    window: int
    chunk: int  # tokens of a prefill step
    ratio: float | None  # `swa-full-tokens-ratio`, if set

    @property
    def row(self) -> int:
        """Bytes of an entry (`kv_bytes`): FP8 with scales, but for the rotary part."""
        return self.head_dim - self.rope_dim + self.rope_dim * 2 + 8

    @property
    def window_row(self) -> float:
        """Bytes of a token in a window: an entry, in pages of whole blocks (`_get_paged_kv_bytes_per_token`)."""
        return -(-self.row * DSV4_PAGE // _BLOCK) * _BLOCK / DSV4_PAGE

    def token_bytes(self, *, drafts: int) -> float:
        """Return the bytes of a token (`_get_bytes_per_full_token`); keys of the indexer are FP4."""
        entry = self.row + self.index_head_dim // 2 + self.index_head_dim // 32
        state_bytes = sum(entry / tokens * layers for tokens, layers in self.sources.items())
        share = self.ratio or 0.0
        return (state_bytes + share * self.window_row * self.layers) * _inflation(self.layers, drafts)

    def requests(self, *, running: int, drafts: int) -> RequestMemory:
        """Return the memory of the running requests."""
        slots, ring = running + 1, 1 << (drafts + 1).bit_length() if drafts else 2
        rows = -(-(slots * ring + ring + 1) // 2) * 2
        total = rows * 2 * self.head_dim * _FLOAT * self.sources.get(2, 0)
        if self.ratio is None:
            total += int(
                self._window_tokens(running, drafts) * self.window_row * self.layers * _inflation(self.layers, drafts)
            )
        return RequestMemory(per_request=total // slots, slots=running, requests=running, bytes=total)

    def _window_tokens(self, running: int, drafts: int) -> int:
        """Return the tokens of windows (`compute_swa_request_cap`; `_resolve_swa_cap_tokens` for the prefix cache)."""
        item = self.window + _EVICTION * max(drafts, 1) + DSV4_PAGE + (2 * drafts if drafts else DSV4_PAGE)
        state_bytes = 4 * running * (self.window + DSV4_PAGE)
        return -(-(item * running + 2 * self.chunk + DSV4_PAGE + state_bytes) // DSV4_PAGE) * DSV4_PAGE


def _inflation(layers: int, drafts: int) -> float:
    """Return the factor that a draft layer adds."""
    return (layers + 1) / layers if drafts else 1.0


def is_unified(env: Mapping[str, str], *, platform: str, version: str) -> bool:
    """Return whether DeepSeek-V4 has a single pool for all layers (layers/attention/dsv4/unified_kv_gate.py)."""
    return platform == "rocm" and env.get(_UNIFIED[0]) == _UNIFIED[1] and is_since(version, UNIFIED_SINCE)


def is_unified_fp8(env: Mapping[str, str], *, arch: str) -> bool:
    """Return whether the unified pool is FP8, which only gfx950 supports."""
    return arch.startswith("gfx95") and env.get(_UNIFIED_FP8, "").lower() in ON
