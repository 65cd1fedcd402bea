"""What a server answers, read strictly: a form that is not the expected one is an error that says so."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.engine.endpoints import CHAT_COMPLETIONS, GENERATE, MODELS, SERVER_INFO

Json = Mapping[str, Any]  # an answer of the server, of which nothing is known until it is read
_SPECULATIVE = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")


class NoAnswerError(Exception):
    """No answer came, or not a whole one: the message says why, in words that stay the same while the fault does."""


class OddAnswerError(Exception):
    """An answer came that cannot be used: its status, its size or its form is not what was expected."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One answer of sglang's own API. Counts are tokens."""

    ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dp_rank: int | None
    verify_steps: int | None  # how often the target model was asked, with speculation
    correct_drafts: int | None  # drafts that it agreed with; sglang 0.5.13 and later count them

    @property
    def accept_length(self) -> float | None:
        """Tokens that one verification gave, 1.0 where no draft is ever right; None without speculation.

        The first token comes from prefill, so that sglang's own `spec_accept_length`, which counts it, is above 1.0
        where all drafts are wrong: 64 tokens in 63 steps (0.5.16, managers/tokenizer_manager.py:2415).
        """
        if not self.verify_steps:
            return None
        if self.correct_drafts is not None:
            return 1 + self.correct_drafts / self.verify_steps
        return (self.completion_tokens - 1) / self.verify_steps


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One answer to a chat request: its text (reasoning first), and in how many pieces it came."""

    text: str
    finish_reason: str
    completion_tokens: int
    pieces: int


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """What sglang says of its own settings; only what is named here is taken, the rest holds its keys in clear."""

    version: str
    page_size: int  # tokens
    replicas: int  # data-parallel
    reports_cache: bool  # answers carry `cached_tokens`
    speculative: str | None  # algorithm, steps, top-k, draft tokens


@contextmanager
def form_of(what: str) -> Iterator[None]:
    """Read an answer in here: one that lacks what is read, or holds it in another type, raises OddAnswerError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise OddAnswerError(f"{what} answers in another form ({type(error).__name__}: {str(error)[:200]})") from error


def read_object(content: bytes, *, path: str) -> Json:
    """A JSON object. Raises OddAnswerError."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise OddAnswerError(f"`{path}` does not answer with JSON") from error
    if not isinstance(data, dict):
        raise OddAnswerError(f"`{path}` does not answer with a JSON object")
    return data


def number(data: Json, key: str) -> int:
    """A count that stands in a JSON object. Raises OddAnswerError."""
    value = optional_number(data, key)
    if value is None:
        raise OddAnswerError(f"`{key}` is missing where a count was expected")
    return value


def optional_number(data: Json, key: str) -> int | None:
    """A count that may stand in a JSON object; None where it does not. Raises OddAnswerError."""
    value = data.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise OddAnswerError(f"`{key}` is {str(value)[:40]!r} where a count was expected")
    return value


def read_models(data: Json) -> dict[str, int | None]:
    """The models a server serves, the first one first, each with its context length in tokens where it says so."""
    with form_of(f"`{MODELS}`"):
        return {_text(model, "id"): optional_number(model, "max_model_len") for model in data["data"]}


def read_server_info(data: Json) -> ServerInfo | None:
    """The settings of an sglang server; None for what another engine answers there. Raises OddAnswerError."""
    if "version" not in data or "page_size" not in data:
        return None
    page = number(data, "page_size")
    if page < 1:
        raise OddAnswerError(f"`page_size` is {page} in `{SERVER_INFO}`")
    speculates = bool(data.get("speculative_algorithm"))
    return ServerInfo(
        version=_text(data, "version"),
        page_size=page,
        replicas=optional_number(data, "dp_size") or 1,
        reports_cache=bool(data.get("enable_cache_report")),
        speculative=" ".join(str(data.get(f"speculative_{name}")) for name in _SPECULATIVE) if speculates else None,
    )


def read_generated(data: Json) -> Generated:
    """An answer of sglang's own API. Raises OddAnswerError."""
    with form_of(f"`{GENERATE}`"):
        meta, ids = data["meta_info"], data["output_ids"]
        if not (isinstance(ids, list) and all(isinstance(each, int) for each in ids)):
            raise OddAnswerError(f"`output_ids` of `{GENERATE}` are not token ids: {str(ids)[:80]}")
        return Generated(
            ids=tuple(ids),
            prompt_tokens=number(meta, "prompt_tokens"),
            completion_tokens=number(meta, "completion_tokens"),
            cached_tokens=number(meta, "cached_tokens"),
            dp_rank=optional_number(meta, "dp_rank"),
            verify_steps=optional_number(meta, "spec_verify_ct"),
            correct_drafts=optional_number(meta, "spec_num_correct_drafts"),
        )


def read_usage_of(data: Json, *, path: str) -> Json:
    """The `usage` of an answer of the OpenAI API. Raises OddAnswerError."""
    with form_of(f"`{path}`"):
        return dict(data["usage"])


def read_chat(data: Json) -> Chat:
    """A chat answer that came in one piece. Raises OddAnswerError."""
    with form_of(f"`{CHAT_COMPLETIONS}`"):
        choice = data["choices"][0]
        return Chat(
            text=_text_of(choice["message"]),
            finish_reason=_text(choice, "finish_reason"),
            completion_tokens=number(data["usage"], "completion_tokens"),
            pieces=1,
        )


def read_chat_events(events: Iterable[bytes]) -> Chat:
    """A chat answer put together from its events. Raises OddAnswerError."""
    with form_of(f"a streamed `{CHAT_COMPLETIONS}`"):
        chunks = [json.loads(event) for event in events]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        texts = [_text_of(choice["delta"]) for choice in choices]
        counts = [number(chunk["usage"], "completion_tokens") for chunk in chunks if chunk.get("usage")]
        return Chat(
            text="".join(texts),
            finish_reason=[_text(choice, "finish_reason") for choice in choices if choice["finish_reason"]][-1],
            completion_tokens=counts[-1],
            pieces=sum(bool(text) for text in texts),
        )


def read_completion_event(event: bytes) -> str:
    """The text that one event of a streamed completion brings. Raises OddAnswerError."""
    with form_of("an event of the stream"):
        return "".join(choice.get("text") or "" for choice in json.loads(event).get("choices", ()))


def _text(data: Json, key: str) -> str:
    value = data[key]
    if not isinstance(value, str):
        raise OddAnswerError(f"`{key}` is {str(value)[:40]!r} where a text was expected")
    return value


def _text_of(message: Json) -> str:
    return (message.get("reasoning_content") or "") + (message.get("content") or "")
