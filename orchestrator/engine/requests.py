"""The bodies of requests: greedy ones that prove a server, and the streamed token ids that measure one."""

import json
from collections.abc import Sequence
from enum import StrEnum

from orchestrator.engine.endpoints import COMPLETIONS, GENERATE
from orchestrator.engine.liveness import RANK_FIELD

Body = dict[str, object]


class Api(StrEnum):
    """The two ways to send token ids: the OpenAI completions API (any engine), and sglang's own."""

    COMPLETIONS = "completions"
    GENERATE = "generate"

    @property
    def path(self) -> str:
        """Where such a request goes."""
        return GENERATE if self is Api.GENERATE else COMPLETIONS


def generate_body(prompt: str | Sequence[int], *, tokens: int, rank: int = 0, **more: object) -> Body:
    """Exactly `tokens` tokens after a text or token ids, from the data-parallel rank `rank`, by sglang's API.

    Greedy ones, unless `more` samples: `temperature=1.0, top_p=0.9`.
    """
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}
    key = "text" if isinstance(prompt, str) else "input_ids"
    return {key: prompt, "sampling_params": sampling, RANK_FIELD: rank}


def scoring_body(prompts: Sequence[Sequence[int]], *, top: int, tokens: int, start: int = 0, rank: int = 0) -> Body:
    """The log-probabilities of all tokens of prompts behind `start`, and of `tokens` greedy ones that follow.

    At each place those of the `top` likeliest tokens too. What stands behind `start` is never taken from the prefix
    cache (`_compute_max_prefix_len` of managers/schedule_batch.py, 0.5.14 to 0.5.23). A list is answered by a list.
    """
    return {
        "input_ids": [list(ids) for ids in prompts],
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": top,
        RANK_FIELD: rank,
    }


def completion_body(model: str, prompt: str | Sequence[int], *, tokens: int, **more: object) -> Body:
    """At most `tokens` greedy tokens after a text or token ids; `more` as it stands."""
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}


def chat_body(model: str, question: str, *, tokens: int, **more: object) -> Body:
    """At most `tokens` greedy tokens in answer to a question, from rank 0; `more` as it stands."""
    messages = [{"role": "user", "content": question}]
    fixed = {"model": model, "messages": messages, "temperature": 0, RANK_FIELD: 0}
    return {**fixed, "max_tokens": tokens, **more}


def tokenize_body(model: str, text: str) -> Body:
    """The token ids of a text, as they stand in the middle of one: no special tokens."""
    return {"model": model, "prompt": text, "add_special_tokens": False}


def benchmark_body(
    api: Api, ids: Sequence[bytes], *, model: str, tokens: int, temperature: float, rank: int | None = None
) -> tuple[bytes, ...]:
    """The body of one measured request, in pieces: exactly `tokens` tokens, streamed.

    `ids` are the pieces of a JSON array's inside (prompts of one prefix share its bytes); `rank` pins the request to
    one data-parallel rank of sglang. `completions` streams only what is new; `generate` repeats the whole text in every
    chunk unless the server runs with --incremental-streaming-output, which costs both sides CPU.
    """
    sampling: Body = {"temperature": temperature, "ignore_eos": True}
    pinned: Body = {} if rank is None else {RANK_FIELD: rank}
    if api is Api.GENERATE:
        settings = {"sampling_params": {**sampling, "max_new_tokens": tokens}, "stream": True, **pinned}
        name = "input_ids"
    else:
        # continuous_usage_stats: the output tokens so far in every chunk, since a chunk may carry several (speculation)
        usage = {"include_usage": True, "continuous_usage_stats": True}
        settings = {
            "model": model,
            **sampling,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": usage,
            **pinned,
        }
        name = "prompt"
    opening = json.dumps(settings).removesuffix("}")
    return (f'{opening}, "{name}": ['.encode(), *ids, b"]}")
