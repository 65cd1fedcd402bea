"""Text prompts of an exact length, for endpoints that do not accept token ids; their `usage` counts the tokens.

Tokenizers of language models do not merge tokens across a space before a word, so the counts of words add up. The
warm-up checks the sum.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from orchestrator.bench.endpoint import Endpoint
from orchestrator.bench.in_thread import in_thread
from orchestrator.bench.prompts import FIRST_WORD, Words
from orchestrator.core.errors import BenchError
from orchestrator.engine.client import Timeouts
from orchestrator.engine.requests import Api, Body, completion_body, generate_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError, read_prompt_tokens

_PROBE: Final = (100, 101, 102)  # token ids in every vocabulary
_REJECTED: Final = frozenset({400, 422})  # sglang's gateway in disaggregation mode: 400; pydantic in FastAPI: 422
_AT_ONCE: Final = 8
_PASSAGE_WORDS: Final = 16
_MIN_WORDS: Final = 8
# Common words and letters, most of which are one token in any vocabulary.
_CANDIDATES: Final = (
    "a about after again all also an and any are as at away back be because been before big but by can come could day "
    "did do down each even every few find first for from get give go good great had has have he help her here him his "
    "home how if in into is it its just keep know last life light like line little long look made make man many may me "
    "men more most much must my name never new next no not now of off old on one only or other our out over own part "
    "people place put right said same see she should so some still such take than that the their them then there these "
    "they thing think this through time to too two under up us use very was way we well were what when where which "
    "while who why will with word work world would year you your b c d e f g h i j k l m n o p q r s t u v w x y z"
)


async def takes_token_ids(endpoint: Endpoint, *, timeout_s: float) -> bool:
    """Return whether the endpoint accepts token ids, that is, does not reject a request with token ids."""
    path, body, limits = _one_token(endpoint, _PROBE, timeout_s)
    try:
        status = await in_thread(lambda: endpoint.client.status("POST", path, body, limits=limits))
    except NoResponseError:
        return True  # the warm-up reports the failure
    return status not in _REJECTED


def _one_token(endpoint: Endpoint, prompt: str | Sequence[int], timeout_s: float) -> tuple[str, Body, Timeouts]:
    """Return path, body and limits of a request for one token after a prompt."""
    api, limits = Api(endpoint.facts.api), Timeouts(connect=timeout_s, idle=timeout_s, total=timeout_s)
    of_api = generate_body if api is Api.GENERATE else completion_body
    return api.path, of_api(prompt=prompt, tokens=1, model=endpoint.facts.served_model), limits


async def count_words(endpoint: Endpoint, text: str, *, timeout_s: float) -> Words:
    """Return words of one token and passages of `text`, with token counts by the endpoint.

    Raises BenchError if the endpoint reports no counts, or too few words have one token.
    """
    first = await _count(endpoint, FIRST_WORD, timeout_s)
    candidates = _CANDIDATES.split()
    counts = await _count_all(endpoint, [f"{FIRST_WORD} {word}" for word in candidates], timeout_s)
    single = tuple(word for word, count in zip(candidates, counts, strict=True) if count == first + 1)
    if len(single) < _MIN_WORDS:
        raise BenchError(
            f"cannot make prompts of an exact length: of {len(candidates)} words {len(single)} have one token",
            location=endpoint.facts.url,
            hint="the endpoint takes no token ids, and its `usage` must count the tokens of a text",
        )
    words = text.split()
    passages = [" ".join(words[at : at + _PASSAGE_WORDS]) for at in range(0, len(words), _PASSAGE_WORDS)]
    lengths = await _count_all(endpoint, [f"{FIRST_WORD} {passage}" for passage in passages], timeout_s)
    return Words(
        first_tokens=first,
        single=single,
        passages=tuple((passage, length - first) for passage, length in zip(passages, lengths, strict=True)),
    )


async def _count_all(endpoint: Endpoint, texts: Sequence[str], timeout_s: float) -> list[int]:
    free = asyncio.Semaphore(_AT_ONCE)

    async def count(text: str) -> int:
        async with free:
            return await _count(endpoint, text, timeout_s)

    return await asyncio.gather(*map(count, texts))


async def _count(endpoint: Endpoint, text: str, timeout_s: float) -> int:
    path, body, limits = _one_token(endpoint, text, timeout_s)
    try:
        return read_prompt_tokens(await in_thread(lambda: endpoint.client.post(path, body, limits=limits)))
    except (NoResponseError, UnexpectedResponseError) as error:
        message = f"the endpoint takes no token ids, and cannot count the tokens of a text: {error}"
        raise BenchError(message, location=endpoint.facts.url) from error
