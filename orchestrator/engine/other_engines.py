"""The engines of endpoints, and the names of their options and metrics.

For vLLM 0.32.0, read from a server; for ATOM, from ROCm/ATOM, atom/entrypoints/openai/protocol.py
(`ModelCard.owned_by`).
"""

import re
from collections.abc import Mapping
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import UsageError
from orchestrator.engine.liveness import RANK_FIELD
from orchestrator.engine.options import Meaning
from orchestrator.engine.responses import Json, get_objects

UNKNOWN: Final = "unknown"  # if the endpoint does not report its engine
# By engine: option names for hints. The keys are also the values of `owned_by` in `/v1/models`.
_OPTIONS: Final[Mapping[str, Mapping[Meaning, str]]] = {
    "sglang": {item: str(item) for item in Meaning},
    "vllm": {Meaning.CACHED_TOKENS_REPORT: "enable-prompt-tokens-details", Meaning.CONTEXT: "max-model-len"},
    "atom": {Meaning.CONTEXT: "max-model-len"},
}
# The header that pins a request to a data-parallel rank (0.32.0, entrypoints/generate/base/serving.py:225).
RANK_HEADER: Final[Mapping[str, str]] = {"vllm": "X-data-parallel-rank"}
RETURNS_IDS: Final = {"vllm": {"return_token_ids": True}}  # the field that adds `token_ids` to a completion
_RANK: Final = re.compile(r'\bengine="(\d+)"')
_BLOCK_SIZE: Final = re.compile(r'^vllm:cache_config_info\{[^}\n]*\bblock_size="(\d{1,6})"', re.MULTILINE)


def require_engine(name: str | None) -> str | None:
    """Return the name of an engine in lower case. Raises UsageError for an unknown engine."""
    if name is not None and name.lower() not in _OPTIONS:
        raise UsageError(f"unknown engine `{name}`", hint=f"use one of {', '.join(_OPTIONS)}, or omit `--engine`")
    return name and name.lower()


def read_engine(models: Json) -> str:
    """Return the engine that owns the models in `/v1/models`, else UNKNOWN."""
    owners = [str(model.get("owned_by")) for model in get_objects(models, "data")]
    return next((owner for owner in owners if owner in _OPTIONS), UNKNOWN)


def choose_model(models: Mapping[str, int | None]) -> tuple[str, int | None] | None:
    """Return the first served model and its context, with a note if there are several; None if there are none."""
    if len(models) > 1:
        first, *ignored = models
        note(f"the endpoint serves {len(models)} models; using the first, `{first}`, not `{'`, `'.join(ignored)}`")
    return next(iter(models.items()), None)


def is_other_engine(engine: str) -> bool:
    """Return whether an engine is known and is not sglang."""
    return engine not in {"sglang", UNKNOWN}


def option_name(engine: str, meaning: Meaning) -> str | None:
    """Return the name of an option in `engine`, without dashes; None if unknown."""
    return _OPTIONS.get(engine, {}).get(meaning)


def pinned(engine: str, body: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """Return body and headers of a request: sglang takes a data-parallel rank in the body, vLLM in a header."""
    if engine == "sglang":
        return dict(body), {}
    without_rank = {key: value for key, value in body.items() if key != RANK_FIELD}
    rank, header = body.get(RANK_FIELD), RANK_HEADER.get(engine)
    return without_rank, {header: str(rank)} if header and rank is not None else {}


def read_ranks(metrics: str) -> int:
    """Return the number of data-parallel ranks in vLLM's metrics; at least 1.

    Before the first request, several API servers export counters but no gauges, such as `num_requests_running`.
    """
    exported = (line for line in metrics.splitlines() if line.startswith("vllm:"))
    return len({match[1] for line in exported if (match := _RANK.search(line))}) or 1


def read_block_size(metrics: str) -> int | None:
    """Return the size of a KV-cache block in tokens from vLLM's metrics; None if unreported."""
    match = _BLOCK_SIZE.search(metrics)
    return int(match[1]) or None if match else None


def speculates(metrics: str) -> bool:
    """Return whether vLLM's metrics have counters of speculation, which exist only if speculation is configured."""
    return "\nvllm:spec_decode_num_drafts_total" in metrics
