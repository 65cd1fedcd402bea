"""Request bodies: greedy requests to verify a server, and streamed requests to measure its performance."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from orchestrator.engine.endpoints import COMPLETIONS, GENERATE
from orchestrator.engine.liveness import RANK_FIELD

Body = dict[str, object]
# Requests the token ids of an answer from the completions API (sglang from 0.5.18, vLLM); older versions ignore the
# field. sglang's own API always returns token ids.
RETURN_IDS: Final[Body] = {"return_token_ids": True}


class Api(StrEnum):
    """The two APIs for measurements: OpenAI completions (any engine), and sglang's own."""

    COMPLETIONS = "completions"
    GENERATE = "generate"

    @property
    def path(self) -> str:
        """The URL path of the API."""
        return GENERATE if self is Api.GENERATE else COMPLETIONS


def generate_body(prompt: str | Sequence[int], *, tokens: int, model: str = "", rank: int = 0, **more: object) -> Body:
    """Return the body that requests exactly `tokens` tokens after a text or token ids, from one data-parallel rank.

    For sglang's own API. It ignores `model`, but a gateway that discovers its servers requires it (smg 1.13.0).
    Decoding is greedy, unless `more` sets sampling parameters: `temperature=1.0, top_p=0.9`.
    """
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}
    key = "text" if isinstance(prompt, str) else "input_ids"
    return {key: prompt, "sampling_params": sampling, RANK_FIELD: rank, **({"model": model} if model else {})}


def scoring_body(prompts: Sequence[Sequence[int]], *, top: int, tokens: int, start: int = 0, rank: int = 0) -> Body:
    """Return the body that requests log-probabilities of prompts from `start` on, and of `tokens` generated tokens.

    The response is a list, with the `top` most likely tokens at each position. Decoding is greedy. sglang never reads
    tokens after `start` from the prefix cache (`_compute_max_prefix_len` of managers/schedule_batch.py, 0.5.14 to
    0.5.23).
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
    """Return the body that requests at most `tokens` tokens after a text or token ids from the completions API.

    Decoding is greedy, unless `more`, added as it is, sets other parameters.
    """
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}


def chat_body(model: str, question: str, *, tokens: int, **more: object) -> Body:
    """Return the body that requests at most `tokens` tokens in reply to a question from rank 0, by the chat API.

    Decoding is greedy, unless `more`, added as it is, sets other parameters.
    """
    messages = [{"role": "user", "content": question}]
    fixed = {"model": model, "messages": messages, "temperature": 0, RANK_FIELD: 0}
    return {**fixed, "max_tokens": tokens, **more}


def tokenize_body(model: str, text: str) -> Body:
    """Return the body that requests the token ids of a text, without special tokens."""
    return {"model": model, "prompt": text, "add_special_tokens": False}


def benchmark_body(
    api: Api,
    prompt: Sequence[bytes],
    *,
    model: str,
    tokens: int,
    temperature: float,
    text: bool = False,
    **more: object,
) -> tuple[bytes, ...]:
    """Return the chunks of the body of a measured request, which streams exactly `tokens` tokens.

    `prompt` is the inside of a JSON array of token ids, or of a JSON string if it is `text`, in chunks, so that prompts
    with a common prefix share its bytes. `more` is added unchanged.
    `completions` streams only new text. `generate` repeats the whole text in every chunk, which costs both sides CPU,
    unless the server runs with --incremental-streaming-output.
    """
    sampling: Body = {"temperature": temperature, "ignore_eos": True}
    if api is Api.GENERATE:
        sampling["max_new_tokens"] = tokens
        settings = {"model": model, "sampling_params": sampling, "stream": True, **more}
        name = "text" if text else "input_ids"
    else:
        # continuous_usage_stats: every chunk reports the output tokens, as a chunk may have several with speculation
        usage = {"include_usage": True, "continuous_usage_stats": True}
        settings = {"model": model, **sampling, "max_tokens": tokens, "stream": True, "stream_options": usage, **more}
        name = "prompt"
    opening = json.dumps(settings).removesuffix("}")
    opened, closed = ('"', '"') if text else ("[", "]")
    return (f'{opening}, "{name}": {opened}'.encode(), *prompt, f"{closed}}}".encode())
