"""The client of the checks, and questions with one correct answer."""

import random
from collections.abc import Callable, Generator, Sequence
from typing import Final

from orchestrator.engine import endpoints, other_engines
from orchestrator.engine.client import EngineClient
from orchestrator.engine.liveness import RANK_FIELD
from orchestrator.engine.requests import Body, chat_body, completion_body, generate_body
from orchestrator.engine.responses import (
    ChatResponse,
    GenerateResponse,
    Json,
    ServerInfo,
    UnexpectedResponseError,
    get_object,
    read_chat,
    read_chat_events,
    read_completed,
    read_generated,
    read_server_info,
)
from orchestrator.plan.plan import SmokeQuestion
from orchestrator.profiles.schema import FILLER
from orchestrator.verify.target import Target

# Token ids that every tokenizer has, above the special ids of small vocabularies. An id outside the vocabulary would
# crash the scheduler (sglang 0.5.14 does not check ids: `IndexError: index out of range in self`).
TOKEN_IDS: Final = range(100, 500)
_SENTENCE: Final = "On day {day} the sea was calm and the wind came from the west."
_LENGTH: Final = len(_SENTENCE.split())


class NotOfferedError(Exception):
    """The engine of the endpoint lacks a feature that a check needs; the message names the feature."""


class SmokeClient:
    """A client of one target. Requests are greedy and pinned to a data-parallel rank; each rank has its own cache."""

    def __init__(
        self,
        target: Target,
        server: EngineClient,
        *,
        seed: int,
        faults: Callable[[], Sequence[str]] | None,
        show: Callable[[str], None] = lambda _: None,
        engine: EngineClient | None = None,
    ) -> None:
        """Create a client of `target` at `server`; a new `seed` gives prompts that no earlier run has cached.

        `show` receives the progress of a long check; `engine` is a worker of the gateway `server`.
        """
        self.target = target
        self.server = server
        self.described_by = engine or server  # has server info, model info and metrics
        self.faults = faults
        self.show = show
        self._random = random.Random(seed)  # noqa: S311 - prompts, not keys

    def fresh_ids(self, count: int) -> list[int]:
        """Return `count` token ids that the server has not received in this order."""
        return self._random.choices(TOKEN_IDS, k=count)

    def generate(self, prompt: str | list[int], *, tokens: int, rank: int = 0, **more: object) -> GenerateResponse:
        """Return exactly `tokens` tokens after `prompt` from rank `rank`: greedy, unless `more` sets sampling.

        Raises NotOfferedError if the engine returns no token ids.
        """
        if self.is_sglang:
            body = generate_body(prompt, tokens=tokens, model=self.target.served_name, rank=rank, **more)
            return read_generated(self.server.post(endpoints.GENERATE, body))
        if (returns_ids := other_engines.RETURNS_IDS.get(self.target.engine)) is None:
            raise NotOfferedError(f"{self.engine} has no `{endpoints.GENERATE}` and returns no token ids")
        more = {"ignore_eos": True, RANK_FIELD: rank, **returns_ids, **more}
        body = completion_body(self.target.served_name, prompt, tokens=tokens, **more)
        return read_completed(self._post(endpoints.COMPLETIONS, body))

    @property
    def is_sglang(self) -> bool:
        """Whether the target is sglang, which has its own API in addition to OpenAI's."""
        return self.target.engine == "sglang"

    @property
    def engine(self) -> str:
        """The engine as the subject of a sentence."""
        return "the endpoint" if self.target.engine == other_engines.UNKNOWN else self.target.engine

    def page_size(self) -> int:
        """Return the tokens per page of the KV cache. Raises NotOfferedError if the endpoint does not report them."""
        if self.is_sglang:
            return self.info().page_size
        size = other_engines.read_block_size(self.server.exported().decode(errors="replace"))
        if size is None:
            raise NotOfferedError(f"{self.engine} reports no block size in `{endpoints.METRICS}`")
        return size

    def usage(self, prompt: str | list[int], *, tokens: int, rank: int = 0) -> Json:
        """Return the `usage` that the OpenAI API reports for `tokens` greedy tokens after `prompt`.

        Raises NotOfferedError if `prompt` has token ids, which a gateway in disaggregation mode rejects (smg 1.13.0).
        """
        if self.target.engine_url and not isinstance(prompt, str):
            raise NotOfferedError(f"the gateway takes no token ids at `{endpoints.COMPLETIONS}`")
        body = completion_body(self.target.served_name, prompt, tokens=tokens, ignore_eos=True, **{RANK_FIELD: rank})
        return get_object(self._post(endpoints.COMPLETIONS, body), "usage")

    def _post(self, path: str, body: Body) -> Json:
        return self.server.post(path, *other_engines.pinned(self.target.engine, body))

    def chat(self, body: Body) -> ChatResponse:
        """Return the answer to a chat request without streaming."""
        return read_chat(self._post(endpoints.CHAT_COMPLETIONS, body))

    def ask(self, question: SmokeQuestion, *, rank: int) -> ChatResponse:
        """Return the answer of rank `rank` to a question, without thinking: reasoning has no single correct text."""
        thinking = {"enable_thinking": False}  # the name in GLM's template; other templates ignore it
        more: Body = {RANK_FIELD: rank, "chat_template_kwargs": thinking}
        return self.chat(chat_body(self.target.served_name, prompt_of(question), tokens=question.max_tokens, **more))

    def chat_stream(self, body: Body) -> ChatResponse:
        """Return the answer to a streamed chat request, joined from its server-sent events."""
        streamed: Body = {**body, "stream_options": {"include_usage": True}}
        return read_chat_events(self.events(endpoints.CHAT_COMPLETIONS, streamed))

    def events(self, path: str, body: Body) -> Generator[bytes]:
        """Yield the events of a streamed response as they arrive; closing the generator aborts the request."""
        yield from self.server.events(path, *other_engines.pinned(self.target.engine, body))

    def info(self) -> ServerInfo:
        """Return the server info. Raises UnexpectedResponseError if it has no version or page size."""
        info = read_server_info(self.described_by.get(endpoints.SERVER_INFO))
        if info is None:
            raise UnexpectedResponseError(f"`{endpoints.SERVER_INFO}` has no version or page size")
        return info


def prompt_of(question: SmokeQuestion) -> str:
    """Return the prompt with filler text."""
    return question.prompt.replace(FILLER, filler(question.filler_words))


def filler(words: int) -> str:
    """Return `words` filler words; no sentence repeats.

    The expected answers of a generated model depend on every word: a change to this text requires new answers.
    """
    sentences = (_SENTENCE.format(day=day) for day in range(1, words // _LENGTH + 2))
    return " ".join(" ".join(sentences).split()[:words])


def is_correct(question: SmokeQuestion, answer: str) -> bool:
    """Return whether an answer is correct, ignoring case, white space and a full stop at the end."""
    return _essence(answer) == _essence(question.expected)


def _essence(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").rstrip().casefold()
