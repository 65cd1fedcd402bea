"""Names that vLLM uses for options and metrics that this tool knows from sglang (vLLM 0.32.0, read from a server)."""

import re
from collections.abc import Mapping
from typing import Final

from orchestrator.engine.options import Meaning
from orchestrator.engine.responses import Json, get_objects

_ENGINES: Final = frozenset({"sglang", "vllm"})
_VLLM_OPTIONS: Final[Mapping[Meaning, str]] = {
    Meaning.CACHED_TOKENS_REPORT: "enable-prompt-tokens-details",
    Meaning.CONTEXT: "max-model-len",
}
_RANK: Final = re.compile(r'\bengine="(\d+)"')
_BLOCK_SIZE: Final = re.compile(r'^vllm:cache_config_info\{[^}\n]*\bblock_size="(\d{1,6})"', re.MULTILINE)


def read_engine(models: Json) -> str | None:
    """Return the engine that `/v1/models` names as the owner of its models; None for an unknown one."""
    owners = {str(model.get("owned_by")) for model in get_objects(models, "data")}
    return next(iter(owners & _ENGINES), None)


def option_name(engine: str | None, meaning: Meaning) -> str | None:
    """Return the name of an option in `engine`, without dashes; None if the engine is unknown."""
    return {"sglang": str(meaning), "vllm": _VLLM_OPTIONS.get(meaning)}.get(engine or "")


def read_ranks(metrics: str) -> int:
    """Return the number of data-parallel ranks in vLLM's metrics; at least 1."""
    running = (line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running{"))
    return len({match[1] for line in running if (match := _RANK.search(line))}) or 1


def read_block_size(metrics: str) -> int | None:
    """Return the size of a block of the KV cache in tokens from vLLM's metrics; None if they do not report it."""
    match = _BLOCK_SIZE.search(metrics)
    return int(match[1]) or None if match else None


def speculates(metrics: str) -> bool:
    """Return whether vLLM's metrics have counters of speculation, which exist only if it is configured."""
    return "\nvllm:spec_decode_num_drafts_total" in metrics
