"""The tiers of the KV cache below GPU memory (HiCache): host memory, then storage.

Source: sglang's wheels 0.5.14 to 0.5.23, below `sglang/srt/mem_cache/`; line numbers are those of 0.5.14.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DEVICE, HOST, STORAGE = "device", "host", "storage"  # names in `cached_tokens_details`
RESERVE: Final = 10 << 30  # bytes of host memory that ranks leave free; pool_host/base.py:25
DEFAULT_RATIO: Final = 2.0  # server_args.py:1776
_UNKNOWN_INDEXER: Final = 1.23  # GLM-5.2, with the largest known pools (SemiAnalysisAI/InferenceX#3329)
_WRITE_BACK: Final = "write_back"


@dataclass(frozen=True, kw_only=True)
class HostTier:
    """The tier of the KV cache in the host's memory. A field is None or 0 if only a start can tell it."""

    tokens: int | None  # per DP rank
    bytes: int  # all pools of one rank
    keeps_copies: bool  # whether it also holds the device's tokens

    def reach(self, device: int) -> int | None:
        """Return the distinct tokens in the host tier and a device cache of `device` tokens together."""
        return None if self.tokens is None else max(self.tokens, device) if self.keeps_copies else self.tokens + device


@dataclass(frozen=True, kw_only=True)
class CacheTiers:
    """The options of the tiers; each rank has its own pool in host memory."""

    kv_bytes: int | None  # size of a rank's pool of keys and values; None: by `ratio`
    ratio: float  # host tokens per device token
    write_policy: str
    storage: str | None  # the backend: file, mooncake, …

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers below the device."""
        return (HOST, *((STORAGE,) if self.storage else ()))

    @property
    def verifiable(self) -> tuple[str, ...]:
        """The tiers that a check can test: with write-back, tokens reach storage only after the device evicts them."""
        return self.names if self._keeps_copies else (HOST,)

    @property
    def _keeps_copies(self) -> bool:
        """Whether the host's pool also holds the device's tokens: they are written when computed or reused."""
        return self.write_policy != _WRITE_BACK

    def reach(self, device: int) -> int | None:
        """Return the distinct tokens in all tiers; None if storage holds more, or a size is given in bytes."""
        if self.storage or self.kv_bytes is not None:
            return None
        return HostTier(tokens=int(device * self.ratio), bytes=0, keeps_copies=self._keeps_copies).reach(device)

    def describe(self) -> str:
        """Describe the tiers: `host memory 2 x the device's pool, storage file`."""
        size = f"{self.ratio:g} x the device's pool" if self.kv_bytes is None else f"{self.kv_bytes / 1e9:g} GB a rank"
        return f"host memory {size}{f', storage {self.storage}' if self.storage else ''}, {self.write_policy}"

    def host_pool(self, *, token_bytes: float, index_bytes: float, tokens: int | None, state_bytes: int) -> HostTier:
        """Return the tier on the host.

        A token takes `token_bytes` on a device rank, including `index_bytes` for the keys of an indexer. A size in
        bytes covers only keys and values (pool_host/base.py:58); the pools of indexer and draft have as many tokens. If
        requests have states, the division of the size depends on the version (0.5.18, `_split_hicache_size`).
        """
        if self.kv_bytes is not None and state_bytes:
            return HostTier(tokens=None, bytes=self.kv_bytes, keeps_copies=self._keeps_copies)
        if self.kv_bytes is not None:
            host_tokens = int(self.kv_bytes / (token_bytes - index_bytes))
            return HostTier(tokens=host_tokens, bytes=int(host_tokens * token_bytes), keeps_copies=self._keeps_copies)
        if tokens is None:
            return HostTier(tokens=None, bytes=0, keeps_copies=self._keeps_copies)
        host_tokens = int(tokens * self.ratio)
        size = int(host_tokens * token_bytes + state_bytes * self.ratio)
        return HostTier(tokens=host_tokens, bytes=size, keeps_copies=self._keeps_copies)

    def unknown_pool(self, *, device_bytes: int) -> HostTier:
        """Return the tier on the host if the size of a token is unknown; the device's pool has `device_bytes`."""
        size = device_bytes * self.ratio if self.kv_bytes is None else self.kv_bytes * _UNKNOWN_INDEXER
        return HostTier(tokens=None, bytes=int(size), keeps_copies=self._keeps_copies)


def reported_tiers(settings: Mapping[str, object]) -> CacheTiers | None:
    """Return the tiers of a server from its `/server_info`; None if it has none."""
    if settings.get("enable_hierarchical_cache") is not True:
        return None
    size, ratio, policy, storage = (
        settings.get(f"hicache_{item}") for item in ("size", "ratio", "write_policy", "storage_backend")
    )
    return CacheTiers(
        kv_bytes=int(size * 1e9) if isinstance(size, int | float) and size > 0 else None,
        ratio=ratio if isinstance(ratio, int | float) and ratio > 0 else DEFAULT_RATIO,
        write_policy=str(policy),
        storage=str(storage) if storage else None,
    )
