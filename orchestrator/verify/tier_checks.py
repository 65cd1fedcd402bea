"""The check of the KV cache tiers: host and storage return the tokens that the device evicted."""

import random
import time
from typing import Final

from orchestrator.engine import endpoints
from orchestrator.engine.cache_tiers import HOST, STORAGE
from orchestrator.engine.responses import GenerateResponse
from orchestrator.verify.client import TOKEN_IDS, SmokeClient
from orchestrator.verify.report import CheckOutcome, compare_ids, failed, passed, skipped, warning

_PROMPT: Final = 1024  # tokens; sglang reads at least 256 from storage (0.5.14, managers/cache_controller.py)
_ANSWER: Final = 16  # tokens
_FILL_SECONDS: Final = 300.0  # to fill the device's pool
_FILL_PROMPT: Final = 16_384  # tokens; a longer prompt may exceed the timeout of a request, or a small host tier
_STORED_SECONDS: Final = 60.0  # until storage has a prompt, which is written in the background
_INTERVAL: Final = 2.0


def cache_tiers(client: SmokeClient) -> CheckOutcome:
    """Check that each cache tier returns evicted tokens and that answers do not change.

    The device evicts nothing until its pool is full, so the check fills the pool. It reads storage after a flush of
    device and host, as after a restart, with the same prompt in each run, to show that storage outlives a run.
    """
    if not client.target.tiers:
        return skipped("the server has no cache tier beyond the device, or uses prefill and decode servers")
    notes: list[str] = []
    for tier, check in ((HOST, _from_host), (STORAGE, _from_storage)):
        if tier in client.target.tiers:
            outcome = check(client)
            if outcome.verdict != "passed":
                return outcome
            notes.append(outcome.evidence)
    return passed("; ".join(notes))


def _from_host(client: SmokeClient) -> CheckOutcome:
    info = client.info()
    if not info.cache_tokens:
        return warning("not tested: the server does not report its cache size, which an eviction must exceed")
    size = min(client.target.context_length, info.cache_tokens)
    prompt = client.fresh_ids(min(_PROMPT, size // 4))
    client.generate(prompt, tokens=_ANSWER)
    before = client.generate(prompt, tokens=_ANSWER)  # the second use, after which a selective policy keeps the prompt
    filled, prompt_size, begin = 0, min(size - size // 8, _FILL_PROMPT), time.monotonic()
    while filled < info.cache_tokens:
        client.show(f"filling the device's pool: {filled:,} of {info.cache_tokens:,} tokens")
        filled += client.generate(client.fresh_ids(prompt_size), tokens=1).prompt_tokens
        expected = (time.monotonic() - begin) * info.cache_tokens / filled
        if expected > _FILL_SECONDS:
            text = f"not tested: filling the {info.cache_tokens:,} tokens on the GPU takes {expected / 60:.0f} minutes"
            return warning(text)
    after = client.generate(prompt, tokens=_ANSWER)
    needed = (len(prompt) - 2) // info.page_size * info.page_size
    if after.cached_tokens < needed or not after.cached_by_source.get(HOST):
        return failed(
            f"of {len(prompt)} tokens that the device evicted, {_sources(after)}; {needed} from host expected"
        )
    return _same(client, HOST, before, after) or passed(f"{_sources(after)} after {filled:,} other tokens")


def _from_storage(client: SmokeClient) -> CheckOutcome:
    count = min(_PROMPT, client.target.context_length // 4)
    prompt = random.Random(STORAGE).choices(TOKEN_IDS, k=count)  # noqa: S311 - the same in each run
    before, end = client.generate(prompt, tokens=_ANSWER), time.monotonic() + _STORED_SECONDS
    if before.cached_by_source.get(STORAGE):
        return passed(f"{_sources(before)}, written before")
    after = None
    while after is None or not after.cached_by_source.get(STORAGE):
        if time.monotonic() > end:
            if after is None:
                return warning(f"`{endpoints.FLUSH_CACHE}` is rejected while requests run: storage was not read")
            text = f"of {count} tokens, after a flush of device and host, {_sources(after)}; some from storage expected"
            return failed(text)
        client.show("waiting until storage has a prompt")
        if client.server.post_status(endpoints.FLUSH_CACHE, b"") == 200:  # also rejected while storage is written
            after = client.generate(prompt, tokens=_ANSWER)
        if after is None or not after.cached_by_source.get(STORAGE):
            time.sleep(_INTERVAL)
    return _same(client, STORAGE, before, after) or passed(f"{_sources(after)} after a flush")


def _same(client: SmokeClient, tier: str, before: GenerateResponse, after: GenerateResponse) -> CheckOutcome | None:
    """Return a failure if the tier's tokens change the answer, or a warning if greedy answers may differ."""
    subject = f"the answer differs with tokens from {tier}"
    return compare_ids(before.ids, after.ids, subject, client.target.nondeterministic)


def _sources(answer: GenerateResponse) -> str:
    if not answer.cached_tokens:
        return "none cached"
    notes = [f"{count:,} from {tier}" for tier, count in answer.cached_by_source.items() if count]
    return ", ".join(notes) or f"{answer.cached_tokens:,} from an unnamed cache"
