"""The requests that the checks are made of."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from orchestrator.prove.target import Target

# Token ids that every tokenizer has, above the special ones of small vocabularies. An id outside the vocabulary would
# crash the scheduler (sglang 0.5.14 checks none: `IndexError: index out of range in self`).
TOKEN_IDS: Final = range(100, 500)
Json = Mapping[str, Any]  # an answer of the server, of which nothing is known until it is read


class Unexpected(Exception):  # noqa: N818 - an answer, not an error of ours
    """An answer that no check can go on from."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One answer of `/generate`. Counts are tokens."""

    ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dp_rank: int | None
    verify_steps: int | None  # how often the target model was asked, with speculation


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One answer of `/v1/chat/completions`: its text (reasoning first), and in how many pieces it came."""

    text: str
    finish_reason: str
    completion_tokens: int
    pieces: int


class Probe:
    """Requests to one target. Greedy, and pinned to a data-parallel rank: each rank has a cache of its own."""

    def __init__(
        self, target: Target, client: httpx.Client, *, seed: int, faults: Callable[[], Sequence[str]] | None
    ) -> None:
        """Send to `target` through `client`; `seed` makes prompts that no earlier run has put into the cache."""
        self.target = target
        self.faults = faults
        self._client = client
        self._random = random.Random(seed)  # noqa: S311 - prompts, not keys

    def fresh_ids(self, count: int) -> list[int]:
        """`count` token ids that this server has not seen in this order."""
        return self._random.choices(TOKEN_IDS, k=count)

    def generate(self, prompt: str | list[int], *, tokens: int, rank: int = 0) -> Generated:
        """Exactly `tokens` greedy tokens after `prompt`, from rank `rank`."""
        answer = self.post_json("/generate", self.generate_body(prompt, tokens=tokens, rank=rank))
        with form_of("`/generate`"):
            meta = answer["meta_info"]
            return Generated(
                ids=tuple(answer["output_ids"]),
                prompt_tokens=number(meta, "prompt_tokens"),
                completion_tokens=number(meta, "completion_tokens"),
                cached_tokens=number(meta, "cached_tokens"),
                dp_rank=meta.get("dp_rank"),
                verify_steps=meta.get("spec_verify_ct"),
            )

    def generate_body(self, prompt: str | list[int], *, tokens: int, rank: int = 0) -> Json:
        """The body of a `/generate` request."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        key = "text" if isinstance(prompt, str) else "input_ids"
        return {key: prompt, "sampling_params": sampling, "routed_dp_rank": rank}

    def usage(self, prompt: str | list[int], *, tokens: int) -> Json:
        """The `usage` of `/v1/completions` for `tokens` greedy tokens after `prompt`, from rank 0."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "routed_dp_rank": 0}
        answer = self.post_json("/v1/completions", {"model": self.target.served_name, **body})
        with form_of("`/v1/completions`"):
            return dict(answer["usage"])

    def chat_body(self, question: str, *, tokens: int, **more: object) -> Json:
        """The body of a greedy `/v1/chat/completions` request to rank 0."""
        messages = [{"role": "user", "content": question}]
        fixed = {"model": self.target.served_name, "messages": messages, "temperature": 0, "routed_dp_rank": 0}
        return {**fixed, "max_tokens": tokens, **more}

    def chat(self, body: Json) -> Chat:
        """The answer to a chat request, in one piece."""
        answer = self.post_json("/v1/chat/completions", body)
        with form_of("`/v1/chat/completions`"):
            choice = answer["choices"][0]
            return Chat(
                text=_text_of(choice["message"]),
                finish_reason=choice["finish_reason"],
                completion_tokens=number(answer["usage"], "completion_tokens"),
                pieces=1,
            )

    def chat_stream(self, body: Json) -> Chat:
        """The answer to a chat request as server-sent events, put together."""
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._client.stream("POST", "/v1/chat/completions", json=streamed) as response:
            if response.status_code != httpx.codes.OK:
                raise Unexpected(f"a streaming request is answered {response.status_code}")
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        if lines[-1:] != ["[DONE]"]:
            raise Unexpected("the stream ended without `data: [DONE]`")
        with form_of("a streamed `/v1/chat/completions`"):
            chunks = [json.loads(line) for line in lines[:-1]]
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            texts = [_text_of(choice["delta"]) for choice in choices]
            return Chat(
                text="".join(texts),
                finish_reason=[choice["finish_reason"] for choice in choices if choice["finish_reason"]][-1],
                completion_tokens=[chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")][-1],
                pieces=sum(bool(text) for text in texts),
            )

    def get_json(self, path: str) -> Json:
        """The JSON object at `path`."""
        return _object(self._client.get(path))

    def post_json(self, path: str, body: Json) -> Json:
        """The JSON object that answers `body`."""
        return _object(self._client.post(path, json=body))

    def status_of(self, path: str, *, content: bytes) -> int:
        """The status code that answers raw bytes sent as JSON."""
        return self._client.post(path, content=content, headers={"content-type": "application/json"}).status_code

    def status_without_key(self, path: str, body: Json) -> int:
        """The status code that answers a request without the API key."""
        request = self._client.build_request("POST", path, json=body)
        del request.headers["Authorization"]
        return self._client.send(request).status_code

    def health(self) -> int:
        """The status code of `/health`, for which the server generates a token; asked again where it is not 200.

        A health request that meets the end of another one waits for an output that never comes (sglang 0.5.14,
        managers/scheduler.py:1633), so a single 503 says nothing of the server.
        """
        first = self._client.get("/health").status_code
        return first if first == httpx.codes.OK else self._client.get("/health").status_code

    def metric(self, name: str) -> float | None:
        """The sum of a metric over its labels, None where the server does not export it."""
        text = self._client.get("/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values)) if values else None


@contextmanager
def form_of(what: str) -> Iterator[None]:
    """Read an answer in here: one that lacks what is read raises Unexpected."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Unexpected(f"{what} answers in another form ({type(error).__name__}: {error})") from error


def number(data: Json, key: str) -> int:
    """An integer of a JSON object; raises Unexpected."""
    value = data.get(key)
    if not isinstance(value, int):
        raise Unexpected(f"`{key}` is {value!r} where a count was expected")
    return value


def _object(response: httpx.Response) -> Json:
    path = response.request.url.path
    if response.status_code != httpx.codes.OK:
        raise Unexpected(f"`{path}` answers {response.status_code}: {response.text[:200]}")
    try:
        data = response.json()
    except ValueError as error:
        raise Unexpected(f"`{path}` does not answer with JSON") from error
    if not isinstance(data, dict):
        raise Unexpected(f"`{path}` does not answer with a JSON object")
    return data


def _text_of(message: Json) -> str:
    return (message.get("reasoning_content") or "") + (message.get("content") or "")
