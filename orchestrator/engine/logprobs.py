"""Strict parsing of the log-probabilities in a response of sglang.

JSON has no NaN, so sglang writes `null`: a position without a number means that the server computed NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.engine.endpoints import GENERATE
from orchestrator.engine.responses import (
    Json,
    UnexpectedResponseError,
    get_object,
    native_ending,
    number,
    setting,
    token_ids,
)

# Settings that affect the rounding of results, named as in `/server_info`.
_NUMERICS: Final = ("version", "dtype", "quantization", "kv_cache_dtype", "attention_backend", "tp_size")
_MIN_LOGPROB: Final = -1e6  # nats
_MAX_LOGPROB: Final = 0.01  # nats; rounding may give a little more than 0

Ranked = tuple[tuple[int, float], ...]  # the most likely token ids at one position, with their log-probabilities


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities in nats at consecutive positions: `actual` for the token itself, `top` for the likeliest."""

    actual: tuple[float, ...]
    top: tuple[Ranked, ...]


@dataclass(frozen=True, kw_only=True)
class ScoredPrompt:
    """The log-probabilities of a prompt, from position `start` + 1 on, and of the generated tokens."""

    prompt: TokenLogprobs
    output_ids: tuple[int, ...]
    output: TokenLogprobs
    cached_tokens: int


def read_scored(data: Json, ids: tuple[int, ...], *, start: int, tokens: int, top: int) -> ScoredPrompt:
    """Parse the response to `scoring_body` for the prompt `ids`.

    Raises UnexpectedResponseError if its format or its tokens are unexpected.
    """
    meta, text = get_object(data, "meta_info"), token_ids(data, "output_ids")
    native_ending(meta)
    if len(text) != tokens:
        raise UnexpectedResponseError(f"`{GENERATE}` generated {len(text)} tokens, {tokens} were requested")
    return ScoredPrompt(
        prompt=_likelihoods(meta, "input", ids[start:], skipped=1, top=top),
        output_ids=text,
        output=_likelihoods(meta, "output", text, skipped=0, top=top),
        cached_tokens=number(meta, "cached_tokens"),
    )


def read_numerics(data: Json) -> Mapping[str, str]:
    """Return the settings in `/server_info` that affect the rounding of results, as text; omit missing settings."""
    return {key: setting(data[key]) for key in _NUMERICS if data.get(key) is not None}


def _likelihoods(meta: Json, which: str, ids: tuple[int, ...], *, skipped: int, top: int) -> TokenLogprobs:
    """Parse the log-probabilities of `ids`, except the first `skipped`, for which sglang computes none.

    sglang reports id 0 for the last token of the vocabulary and for image placeholders
    (managers/scheduler_components/logprob_result_processor.py:53, 0.5.14 to 0.5.23).
    """
    chosen, ranked = _rows(meta, f"{which}_token_logprobs", ids), _rows(meta, f"{which}_top_logprobs", ids)
    scores = [_entry(row, f"{which} token {position}") for position, row in enumerate(chosen) if position >= skipped]
    if any(token not in (prompt_id, 0) for (token, _), prompt_id in zip(scores, ids[skipped:], strict=True)):
        raise UnexpectedResponseError(f"the log-probabilities of `{GENERATE}` are for other tokens than its {which}")
    return TokenLogprobs(
        actual=tuple(score for _, score in scores),
        top=tuple(
            _ranked(row, f"{which} token {position}", top) for position, row in enumerate(ranked) if position >= skipped
        ),
    )


def _rows(meta: Json, key: str, ids: tuple[int, ...]) -> list[Any]:
    rows = meta.get(key)
    if not isinstance(rows, list):
        raise UnexpectedResponseError(f"`{GENERATE}` returned no `{key}`")
    if len(rows) != len(ids):
        raise UnexpectedResponseError(f"`{key}` has {len(rows)} entries, {len(ids)} were requested")
    return rows


def _ranked(row: object, position: str, top: int) -> Ranked:
    if not isinstance(row, list) or len(row) != top:
        raise UnexpectedResponseError(f"`{GENERATE}` did not return the {top} likeliest tokens at {position}")
    return tuple(_entry(item, position) for item in row)


def _entry(row: object, position: str) -> tuple[int, float]:
    """Parse the id and the log-probability of one token; sglang's rows also hold the token's text."""
    if not isinstance(row, list) or len(row) < 2 or type(row[1]) is not int or row[1] < 0:
        raise UnexpectedResponseError(f"`{GENERATE}` returned no token with a log-probability at {position}")
    score = row[0]
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise UnexpectedResponseError(f"the log-probability at {position} is not a number; sglang writes NaN as null")
    if not _MIN_LOGPROB <= score <= _MAX_LOGPROB:
        raise UnexpectedResponseError(f"`{GENERATE}` returned no log-probability (at most 0) at {position}")
    return row[1], float(score)
