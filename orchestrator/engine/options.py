"""sglang's options by meaning, and the dependencies of an option's value on model and layout."""

from enum import Enum, StrEnum, auto
from typing import Final


class Meaning(StrEnum):
    """The meaning of a setting; its value is sglang's option name, without dashes."""

    CONTEXT = "context-length"
    RUNNING_REQUESTS = "max-running-requests"
    PREFILL_CHUNK = "chunked-prefill-size"
    CACHE_TOKENS = "max-total-tokens"
    CACHE_TYPE = "kv-cache-dtype"
    MEMORY_FRACTION = "mem-fraction-static"
    STATE_RATIO = "mamba-full-memory-ratio"
    WINDOW_RATIO = "swa-full-tokens-ratio"
    HOST_TIER = "enable-hierarchical-cache"
    HOST_TIER_SIZE = "hicache-size"
    HOST_TIER_RATIO = "hicache-ratio"
    METRICS = "enable-metrics"
    CACHED_TOKENS_REPORT = "enable-cache-report"
    REASONING_PARSER = "reasoning-parser"
    TOOL_PARSER = "tool-call-parser"
    CHECKPOINT_CODE = "trust-remote-code"
    FIRST_GPU = "base-gpu-id"
    EXPERT_FUSION = "enforce-shared-experts-fusion"
    NO_EXPERT_FUSION = "disable-shared-experts-fusion"
    API_KEY = "api-key"
    HEAD = "dist-init-addr"


# Patterns of options by topic, for tables of differences.
SUBJECTS: Final = {"quantization": ("*quantization", f"{Meaning.CACHE_TYPE}*"), "speculation": ("speculative*",)}


class Tie(Enum):
    """A dependency of an option's value, which forbids copying it to another model or layout."""

    SIZE = auto()  # depends on the sizes of model, layout and GPU
    MODEL = auto()
    SPARSE_ATTENTION = auto()
    DRAFTS = auto()


_TIES: Final = {
    Tie.SIZE: (
        "mem-fraction-static", "max-running-requests", "max-total-tokens", "context-length", "cuda-graph-max-bs",
        "cuda-graph-max-bs-decode",
    ),
    Tie.MODEL: (
        "reasoning-parser", "tool-call-parser", "quantization", "chat-template", "json-model-override-args",
        "speculative-draft-model-path", "trust-remote-code",
    ),
}  # fmt: skip
_TIED_FAMILIES: Final = {"dsa-": Tie.SPARSE_ATTENTION, "nsa-": Tie.SPARSE_ATTENTION, "speculative-": Tie.DRAFTS}


def ties(name: str) -> frozenset[Tie]:
    """Return all dependencies of an option's value."""
    return frozenset(
        [tie for tie, names in _TIES.items() if name in names]
        + [tie for prefix, tie in _TIED_FAMILIES.items() if name.startswith(prefix)]
    )
