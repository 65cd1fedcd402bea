"""Checks with prompts of thousands of tokens, which run code that short prompts never reach."""

from typing import Final

from orchestrator.core.secrets import excerpt
from orchestrator.engine.liveness import RANK_FIELD
from orchestrator.engine.requests import chat_body
from orchestrator.engine.responses import NoResponseError
from orchestrator.verify.client import SmokeClient, filler
from orchestrator.verify.report import CheckOutcome, causes_of, failed, passed, skipped

# About 8,000 tokens: four times the tokens that sparse attention selects (`index_topk` 2048, DeepSeek-V3.2 and GLM-5).
_WORDS: Final = 6000
_CONTROL_WORDS: Final = 60
_MIN_CONTEXT: Final = 16384  # tokens; twice the text
_DEPTHS: Final = (0.1, 0.5, 0.9)  # share of the text before the fact
_ANSWER_TOKENS: Final = 64
# Above the two lengths at which an indexer's logits reach 2 GiB: 23,170 tokens with a prefill chunk of 32,768 or more,
# 32,767 with one of 16,384. ROCm then aborts every rank (sglang #36960, 0.5.17 and 0.5.18 on gfx950).
_COLD_LENGTHS: Final = (24_576, 33_792)


def fact_found(client: SmokeClient) -> CheckOutcome:
    """Check that the model finds a fact in a long text: sparse attention may select the wrong tokens."""
    if reason := _too_slow(client):
        return skipped(reason)
    if client.target.context_length < _MIN_CONTEXT:
        return skipped(f"the context is shorter than {_MIN_CONTEXT:,} tokens")
    code, answer, _ = _ask_for_code(client, _CONTROL_WORDS, 0.5, rank=0)
    if code not in answer:
        return skipped(f"the model does not find a fact in a short text either: {excerpt(answer, 40)!r}")
    wrong, longest = [], 0
    for number, depth in enumerate(_DEPTHS):
        code, answer, tokens = _ask_for_code(client, _WORDS, depth, rank=number % client.target.dp)
        longest = max(longest, tokens)
        if code not in answer:
            wrong.append(f"at {depth:.0%} of {tokens:,} tokens {excerpt(answer, 40)!r} instead of '{code}'")
    if wrong:
        return failed("; ".join(wrong), causes=causes_of(client.target.wrong_answers, hints=True))
    return passed(f"at {', '.join(f'{depth:.0%}' for depth in _DEPTHS)} of {longest:,} tokens")


def _ask_for_code(client: SmokeClient, words: int, depth: float, *, rank: int) -> tuple[str, str, int]:
    """Ask for a code that a text mentions at `depth`; return the code, the answer and the length of the prompt."""
    code = "".join(str(token % 10) for token in client.fresh_ids(5))
    text = filler(words).split()
    text.insert(int(depth * words), f"The code of the blue door is {code}.")
    question = f"{' '.join(text)} What is the code of the blue door? Answer with the code only."
    more = {RANK_FIELD: rank, "chat_template_kwargs": {"enable_thinking": False}}
    answer = client.chat(chat_body(client.target.served_name, question, tokens=_ANSWER_TOKENS, **more))
    return code, answer.text, answer.prompt_tokens


def long_prefill(client: SmokeClient) -> CheckOutcome:
    """Check that a long prompt outside the cache does not abort the ranks; short prompts do not show this fault."""
    if reason := _too_slow(client):
        return skipped(reason)
    lengths = [length for length in _COLD_LENGTHS if length < client.target.context_length]
    if not lengths:
        return skipped(f"the context is not longer than {_COLD_LENGTHS[0]:,} tokens")
    for length in lengths:
        try:
            answer = client.generate(client.fresh_ids(length), tokens=1)
        except NoResponseError as error:
            raise NoResponseError(f"a prompt of {length:,} tokens: {error}") from error
        if answer.prompt_tokens != length:
            return failed(f"a prompt of {length:,} tokens is counted as {answer.prompt_tokens:,}")
    client.generate(client.fresh_ids(8), tokens=1)
    return passed(f"prompts of {' and '.join(f'{length:,}' for length in lengths)} tokens; still serving")


def _too_slow(client: SmokeClient) -> str:
    return "" if client.target.on_gpu else "only with the profile of a server on GPUs: a CPU takes minutes"
