"""Strict parsing of a server's responses: unexpected formats raise errors with clear messages.

Only `read_json` parses JSON; typed accessors read single values from its result. For any content of a response, parsing
raises no error other than UnexpectedResponseError.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json

from orchestrator.core.secrets import excerpt
from orchestrator.engine.cache_tiers import DEVICE, HOST, STORAGE, reported_tiers
from orchestrator.engine.disaggregation import ROLES
from orchestrator.engine.endpoints import CHAT_COMPLETIONS, COMPLETIONS, GENERATE, SERVER_INFO

Json = Mapping[str, Any]  # an unchecked JSON object of a response
MAX_RESPONSE_BYTES: Final = 2 << 20  # per document, which takes up to 30 times as much memory when parsed
MAX_COUNT: Final = 1 << 53  # larger integers are not exact in JSON (RFC 8259, 6)
_MAX_DP_RANKS: Final = 1024
_MAX_PAGE: Final = 1 << 16  # tokens
_MAX_TOKEN_ID: Final = (1 << 31) - 1
_MAX_SHOWN: Final = 40  # characters of a value in a message
# `abort`: sglang 0.5.14, managers/schedule_batch.py, FINISH_ABORT; `error`: vLLM, v1/engine/__init__.py
_ABORTED: Final = frozenset({"abort", "error"})
_SPECULATIVE: Final = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")


class NoResponseError(Exception):
    """No complete response arrived; the message is the reason, and does not change while the fault lasts."""


class UnexpectedResponseError(Exception):
    """A response arrived with an unexpected status, size or format."""


class UnauthorizedError(UnexpectedResponseError):
    """The server requires an API key or rejects the given key."""


class AbortedResponseError(UnexpectedResponseError):
    """The server aborted the generation of its answer."""


@dataclass(frozen=True, kw_only=True)
class GenerateResponse:
    """A response of sglang's own API. Counts are in tokens."""

    ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dp_rank: int | None
    verify_steps: int | None  # verifications by the target model, with speculation
    correct_drafts: int | None  # accepted draft tokens; counted by sglang 0.5.13 and later
    cached_by_source: Mapping[str, int] = field(default_factory=dict)  # device, host, storage; {} without tiers

    @property
    def accept_length(self) -> float | None:
        """Mean tokens per verification, 1.0 if no draft token is accepted; None without speculation.

        The first token comes from prefill and is not counted. sglang's `spec_accept_length` counts it, and is therefore
        above 1.0 even if all drafts are wrong: 64 tokens in 63 steps (0.5.16, managers/tokenizer_manager.py:2415).
        """
        if not self.verify_steps:
            return None
        if self.correct_drafts is not None:
            return 1 + self.correct_drafts / self.verify_steps
        return (self.completion_tokens - 1) / self.verify_steps


@dataclass(frozen=True, kw_only=True)
class ChatResponse:
    """A response to a chat request. `chunks` counts the chunks of the stream that contain text."""

    text: str  # reasoning, then content
    content: str  # without the reasoning
    tools: tuple[str, ...]  # names of called tools; not read from a stream
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    chunks: int


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """The settings of an sglang server from `/server_info`, without fields that may contain a key."""

    version: str
    page_size: int  # tokens
    dp_ranks: int
    reports_cache: bool  # responses have `cached_tokens`
    speculative: str | None  # algorithm, steps, top-k, draft tokens
    cache_tokens: int | None = None  # cache size on the device, per DP rank
    tier_tokens: int | None = None  # including host memory, per DP rank; None: unknown, or storage holds more
    prompt_tokens: int | None = None  # longest prompt that the server accepts
    role: str = ""  # prefill or decode, if disaggregated
    tiers: tuple[str, ...] = ()  # tiers of the KV cache below the device, named as in `cached_by_source`
    cache_bytes: float = 0.0  # size of the KV cache over all ranks that report it


def read_json(content: bytes | bytearray, *, path: str) -> Any:  # noqa: ANN401 - of any shape
    """Parse a JSON document: UTF-8, no NaN, no lone surrogate, at most 200 levels. Raises UnexpectedResponseError."""
    try:
        return from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise UnexpectedResponseError(f"the response of `{path}` is not JSON: {error}") from error


def read_object(content: bytes | bytearray, *, path: str) -> Json:
    """Parse a JSON object. Raises UnexpectedResponseError."""
    data = read_json(content, path=path)
    if not isinstance(data, dict):
        raise UnexpectedResponseError(f"the response of `{path}` is not a JSON object")
    return data


def read_list(content: bytes | bytearray, *, path: str) -> list[Json]:
    """Parse a list of JSON objects. Raises UnexpectedResponseError."""
    data = read_json(content, path=path)
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise UnexpectedResponseError(f"the response of `{path}` is not a list of JSON objects")
    return data


def number(data: Json, key: str) -> int:
    """Return the count at `key`, from 0 to MAX_COUNT. Raises UnexpectedResponseError."""
    value = data.get(key)
    if type(value) is not int or not 0 <= value <= MAX_COUNT:  # not isinstance: a bool is an int
        raise _unexpected_value(key, value, "a count")
    return value


def optional_number(data: Json, key: str) -> int | None:
    """Return the count at `key`, None if it is missing or null. Raises UnexpectedResponseError."""
    return None if data.get(key) is None else number(data, key)


def get_object(data: Json, key: str) -> Json:
    """Return the object at `key`. Raises UnexpectedResponseError."""
    value = data.get(key)
    if not isinstance(value, dict):
        raise _unexpected_value(key, value, "an object")
    return value


def get_objects(data: Json, key: str) -> list[Json]:
    """Return the list of objects at `key`. Raises UnexpectedResponseError."""
    value = data.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _unexpected_value(key, value, "a list of objects")
    return value


def text(data: Json, key: str) -> str:
    """Return the text at `key`. Raises UnexpectedResponseError."""
    value = data.get(key)
    if not isinstance(value, str):
        raise _unexpected_value(key, value, "a text")
    return value


def optional_text(data: Json, key: str) -> str | None:
    """Return the text at `key`, None if it is missing or null. Raises UnexpectedResponseError."""
    return None if data.get(key) is None else text(data, key)


def name(data: Json, key: str) -> str:
    """Return the name at `key`, printable and not empty. Raises UnexpectedResponseError."""
    value = text(data, key)
    if not value or not value.isprintable():
        raise _unexpected_value(key, value, "a name")
    return value


def read_models(data: Json) -> dict[str, int | None]:
    """Parse the served models, in order, with their context lengths in tokens, None if unreported.

    Raises UnexpectedResponseError.
    """
    return {name(model, "id"): optional_number(model, "max_model_len") for model in get_objects(data, "data")}


def read_server_info(data: Json) -> ServerInfo | None:
    """Parse the settings of an sglang server; None for another engine's response. Raises UnexpectedResponseError."""
    if "version" not in data or "page_size" not in data:
        return None
    page = number(data, "page_size")
    # Since 0.5.22 data-parallel attention has its own field, and `dp_size` is 1 (server_args.py, `resolved_dict`).
    dp_ranks = (optional_number(data, "dp_size") or 1) * (optional_number(data, "attn_dp_size") or 1)
    if not 1 <= page <= _MAX_PAGE:
        raise UnexpectedResponseError(f"`page_size` in `{SERVER_INFO}` is {page}")
    if dp_ranks > _MAX_DP_RANKS:
        raise UnexpectedResponseError(f"`dp_size` in `{SERVER_INFO}` is {dp_ranks}, more than {_MAX_DP_RANKS}")
    speculates = bool(data.get("speculative_algorithm"))
    cache, tiers = optional_number(data, "max_total_num_tokens"), reported_tiers(data)
    limit = optional_number(data, "max_req_input_len")  # 0.5.14, managers/utils.py:155: a prompt is shorter
    return ServerInfo(
        version=name(data, "version"),
        page_size=page,
        dp_ranks=dp_ranks,
        reports_cache=data.get("enable_cache_report") is True,
        speculative=" ".join(setting(data.get(f"speculative_{item}")) for item in _SPECULATIVE) if speculates else None,
        cache_tokens=cache,
        tier_tokens=cache if cache is None or tiers is None else tiers.reach(cache),
        prompt_tokens=limit - 1 if limit else None,
        role=role if (role := data.get("disaggregation_mode")) in ROLES else "",
        tiers=() if tiers is None else tiers.names,
        cache_bytes=sum(_cache_bytes(data.get("internal_states"))),
    )


def _cache_bytes(states: object) -> Iterator[float]:
    """Yield the bytes of each rank's cache, rounded to 0.01 GiB (0.5.14, `get_internal_state`)."""
    for state in states if isinstance(states, list) else ():
        usage = state.get("memory_usage") if isinstance(state, dict) else None
        size = usage.get("kvcache") if isinstance(usage, dict) else None
        yield (size + 0.01) * (1 << 30) if type(size) is float and 0 <= size < MAX_COUNT else 0.0


def read_generated(data: Json) -> GenerateResponse:
    """Parse a response of sglang's own API. Raises UnexpectedResponseError.

    Raises AbortedResponseError if the server aborted the generation.
    """
    meta, ids = get_object(data, "meta_info"), data.get("output_ids")
    native_ending(meta)
    if not isinstance(ids, list) or not all(type(item) is int and item >= 0 for item in ids):
        raise UnexpectedResponseError(f"`output_ids` of `{GENERATE}` are not token ids: {_excerpt(ids)}")
    return GenerateResponse(
        ids=tuple(ids),
        prompt_tokens=number(meta, "prompt_tokens"),
        completion_tokens=number(meta, "completion_tokens"),
        cached_tokens=number(meta, "cached_tokens"),
        dp_rank=optional_number(meta, "dp_rank"),
        verify_steps=optional_number(meta, "spec_verify_ct"),
        correct_drafts=optional_number(meta, "spec_num_correct_drafts"),
        cached_by_source=_cached_by_source(meta),
    )


def _cached_by_source(meta: Json) -> dict[str, int]:
    """Return the cached tokens by tier: `{'device': 0, 'host': 600}` (sglang 0.5.16 with a hierarchical cache)."""
    details = meta.get("cached_tokens_details")
    tiers = (DEVICE, HOST, STORAGE)
    return {tier: number(details, tier) for tier in tiers if tier in details} if isinstance(details, dict) else {}


def read_completed(data: Json) -> GenerateResponse:
    """Parse a response of the completions API with `token_ids` (vLLM). Raises UnexpectedResponseError."""
    choices, usage = get_objects(data, "choices"), get_object(data, "usage")
    if not choices:
        raise UnexpectedResponseError(f"the response of `{COMPLETIONS}` has no choice")
    _ending(choices[0])
    return GenerateResponse(
        ids=token_ids(choices[0], "token_ids"),
        prompt_tokens=number(usage, "prompt_tokens"),
        completion_tokens=number(usage, "completion_tokens"),
        cached_tokens=read_cached(usage) or 0,
        dp_rank=None,
        verify_steps=None,
        correct_drafts=None,
    )


def read_cached(usage: Json) -> int | None:
    """Return the cached tokens in a `usage`; None if unreported. Raises UnexpectedResponseError."""
    details = usage.get("prompt_tokens_details")
    return optional_number(details, "cached_tokens") if isinstance(details, dict) else None


def read_chat(data: Json) -> ChatResponse:
    """Parse an unstreamed chat response. Raises UnexpectedResponseError."""
    choices = get_objects(data, "choices")
    if not choices:
        raise UnexpectedResponseError(f"the response of `{CHAT_COMPLETIONS}` has no choice")
    message, usage = get_object(choices[0], "message"), get_object(data, "usage")
    calls = get_objects(message, "tool_calls") if message.get("tool_calls") else []
    return ChatResponse(
        text=_output(message),
        content=optional_text(message, "content") or "",
        tools=tuple(name(get_object(call, "function"), "name") for call in calls),
        finish_reason=_ending(choices[0]) or name(choices[0], "finish_reason"),
        prompt_tokens=number(usage, "prompt_tokens"),
        completion_tokens=number(usage, "completion_tokens"),
        chunks=1,
    )


def read_chat_events(events: Iterable[bytes]) -> ChatResponse:
    """Assemble a chat response from the events of its stream. Raises UnexpectedResponseError."""
    text, content, pieces = io.StringIO(), io.StringIO(), 0
    reason = usage = None
    for event in events:
        chunk = read_object(event, path=CHAT_COMPLETIONS)
        for choice in get_objects(chunk, "choices"):
            delta = get_object(choice, "delta")
            pieces += text.write(_output(delta)) > 0
            content.write(optional_text(delta, "content") or "")
            reason = _ending(choice) or reason
        if chunk.get("usage") is not None:
            usage = get_object(chunk, "usage")
        if text.tell() > MAX_RESPONSE_BYTES:
            raise UnexpectedResponseError(
                f"the stream of `{CHAT_COMPLETIONS}` has more than {MAX_RESPONSE_BYTES >> 20} MiB of text"
            )
    if reason is None or usage is None:
        missing = "finish reason" if reason is None else "token counts"
        raise UnexpectedResponseError(f"the stream of `{CHAT_COMPLETIONS}` has no {missing}")
    return ChatResponse(
        text=text.getvalue(),
        content=content.getvalue(),
        tools=(),
        finish_reason=reason,
        prompt_tokens=number(usage, "prompt_tokens"),
        completion_tokens=number(usage, "completion_tokens"),
        chunks=pieces,
    )


def read_prompt_tokens(data: Json) -> int:
    """Parse the number of prompt tokens of a completion, from either API. Raises UnexpectedResponseError."""
    return number(get_object(data, "meta_info" if "meta_info" in data else "usage"), "prompt_tokens")


def token_ids(data: Json, key: str) -> tuple[int, ...]:
    """Return the list of token ids at `key`. Raises UnexpectedResponseError."""
    ids = data.get(key)
    if not isinstance(ids, list) or not all(type(item) is int and 0 <= item <= _MAX_TOKEN_ID for item in ids):
        raise _unexpected_value(key, ids, "a list of token ids")
    return tuple(ids)


def read_completion_event(event: bytes) -> tuple[str, str | None]:
    """Parse an event of a streamed completion: its text, and the finish reason or None.

    Raises UnexpectedResponseError.
    """
    choices = get_objects(read_object(event, path=COMPLETIONS), "choices")
    reasons = [reason for choice in choices if (reason := _ending(choice))]
    return "".join(optional_text(choice, "text") or "" for choice in choices), reasons[-1] if reasons else None


def _output(message: Json) -> str:
    return (optional_text(message, "reasoning_content") or "") + (optional_text(message, "content") or "")


def native_ending(meta: Json) -> str | None:
    """Return the finish reason in sglang's own format, or None. Raises UnexpectedResponseError."""
    reason = get_object(meta, "finish_reason") if meta.get("finish_reason") is not None else {}
    return finished(optional_text(reason, "type"))


def _ending(choice: Json) -> str | None:
    """Return the finish reason of a choice, None while the stream continues. Raises AbortedResponseError."""
    return finished(optional_text(choice, "finish_reason"))


def finished(reason: str | None) -> str | None:
    """Return a finish reason unchanged. Raises AbortedResponseError if the server aborted the generation."""
    if reason in _ABORTED:
        raise AbortedResponseError(f"the server aborted its answer (`finish_reason` is `{reason}`)")
    return reason


def setting(value: object) -> str:
    """Return a setting as printable text of at most 40 characters; for a list or an object, only its size."""
    return (
        _excerpt(value)
        if isinstance(value, dict | list)
        else excerpt("".join(filter(str.isprintable, str(value))), _MAX_SHOWN)
    )


def _unexpected_value(key: str, value: object, expected: str) -> UnexpectedResponseError:
    if value is None:
        return UnexpectedResponseError(f"`{key}` is missing, expected {expected}")
    return UnexpectedResponseError(f"`{key}` is {_excerpt(value)}, expected {expected}")


def _excerpt(value: object) -> str:
    """Return a value for a message; for a list or an object, only its size."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = excerpt(ascii(value), _MAX_SHOWN + 1)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
