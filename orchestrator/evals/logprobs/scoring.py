"""The log-probabilities of fixed texts from a server, with several request variants.

Within a minute, they reveal a wrong kernel whose output still reads as good English. Each variant exercises different
code: a single prompt (prefill, chunked if long), the prompt with its decoded tokens (prefill against decoding), a batch
(other shapes), and a cached prefix (the KV cache).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.console import Progress
from orchestrator.core.secrets import excerpt
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.logprobs import ScoredPrompt, TokenLogprobs, read_numerics, read_scored
from orchestrator.engine.requests import scoring_body, tokenize_body
from orchestrator.engine.responses import UnexpectedResponseError, token_ids
from orchestrator.evals.logprobs.divergence import diverge
from orchestrator.evals.logprobs.report import LogprobRow
from orchestrator.verify.target import Target

LENGTHS: Final = (64, 512, 2048, 8192)  # tokens; the response for the longest has 1.3 MB, below the limit of 2 MiB
TOP: Final = 5
_DECODED: Final = 32  # tokens decoded after each text
_BATCHED: Final = 2048  # tokens of the longest text in the batch, which contains each text twice
_CHARACTERS: Final = 12  # characters per token, above any tokenizer's average
_LIMITS: Final = Timeouts(connect=5.0, idle=180.0, total=180.0)
_MAX_NAME: Final = 200  # characters

Texts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The checkpoint of a server: directory name, source (None: unknown), and the settings that affect rounding."""

    model: str
    source: str | None
    numerics: dict[str, str]


def open_client(target: Target) -> EngineClient:
    """Return a client with long timeouts, since the first request of a shape may compile kernels."""
    return EngineClient(target.url, key=target.api_key, limits=_LIMITS)


def cut_texts(client: EngineClient, target: Target, text: str, *, max_length: int) -> Texts:
    """Return consecutive passages of a text as token ids, with the `LENGTHS` that fit the text and the context.

    Raises NoResponseError or UnexpectedResponseError if the server cannot tokenize, or if no length fits.
    """
    limit = min(max_length, target.context_length - 2 * _DECODED)
    lengths = [length for length in LENGTHS if length <= limit]
    body = tokenize_body(target.served_name, text[: _CHARACTERS * sum(lengths)])
    ids = token_ids(client.post(endpoints.TOKENIZE, body), "tokens")
    texts = []
    for length in lengths:
        passage, ids = ids[:length], ids[length:]
        texts += [passage] if len(passage) == length else []
    if not texts:
        raise UnexpectedResponseError(
            f"a context of {target.context_length} tokens is too short for a text of {LENGTHS[0]}"
        )
    return tuple(texts)


@dataclass(frozen=True, kw_only=True)
class RankScores:
    """The scores of single prompts from one rank, and their differences from the other request variants."""

    label: str
    single: tuple[ScoredPrompt, ...]
    rows: tuple[LogprobRow, ...]
    comparisons: tuple[LogprobRow, ...] = ()  # with the reference, or with the first rank


def score_rank(
    client: EngineClient, target: Target, texts: Texts, *, rank: int, label: str, progress: Progress
) -> RankScores:
    """Score all texts on one data-parallel rank. Raises NoResponseError, UnexpectedResponseError."""
    scorer = _RankScorer(client=client, rank=rank, label=label, progress=progress)
    single = tuple(scorer.score((text,), description=f"{len(text)} tokens")[0] for text in texts)
    variants = [scorer.repeated, scorer.batched, *([scorer.cached] if target.prefix_cache else [])]
    rows = tuple(row for variant in variants for row in variant(texts, single))
    return RankScores(label=label, single=single, rows=rows)


def compare_ranks(
    texts: Texts, scores: RankScores, before: Sequence[TokenLogprobs], *, compared_with: str
) -> tuple[LogprobRow, ...]:
    """Compare each text of a rank with earlier scores."""
    return tuple(
        _row(compared_with, scores.label, len(ids), earlier, scored.prompt, first=1)
        for ids, scored, earlier in zip(texts, scores.single, before, strict=True)
    )


def identify(client: EngineClient, *, source: str | None) -> Identity:
    """Return the checkpoint and numeric settings of a server. Raises NoResponseError, UnexpectedResponseError."""
    path = client.get(endpoints.MODEL_INFO).get("model_path")
    if not isinstance(path, str) or not path:
        raise UnexpectedResponseError(f"`{endpoints.MODEL_INFO}` has no model path")
    model = excerpt(path.rstrip("/").rpartition("/")[2], _MAX_NAME)
    return Identity(model=model, source=source, numerics=dict(read_numerics(client.get(endpoints.SERVER_INFO))))


@dataclass(frozen=True, kw_only=True)
class _RankScorer:
    """A client for one data-parallel rank, and its request variants."""

    client: EngineClient
    rank: int
    label: str
    progress: Progress

    def score(self, prompts: Texts, *, description: str, start: int = 0) -> tuple[ScoredPrompt, ...]:
        """Score prompts from position `start` on. Raises UnexpectedResponseError if a score is missing."""
        self.progress.update("logprobs", transient=f"{self.label} {description}".strip())
        body = scoring_body(prompts, top=TOP, tokens=_DECODED, start=start, rank=self.rank)
        results = self.client.post_list(endpoints.GENERATE, body)
        if len(results) != len(prompts):
            message = f"`{endpoints.GENERATE}` returned {len(results)} results for {len(prompts)} prompts"
            raise UnexpectedResponseError(message)
        pairs = zip(results, prompts, strict=True)
        return tuple(read_scored(result, ids, start=start, tokens=_DECODED, top=TOP) for result, ids in pairs)

    def repeated(self, texts: Texts, single: Sequence[ScoredPrompt]) -> Iterator[LogprobRow]:
        """Compare each prompt, followed by its decoded tokens, with the first request: prefill against decoding."""
        decoded = []
        for ids, before in zip(texts, single, strict=True):
            after = self.score(((*ids, *before.output_ids),), description=f"{len(ids)} tokens again")[0].prompt
            prompt, continuation = _slice(after, 0, len(ids) - 1), _slice(after, len(ids) - 1, None)
            yield _row("asked again", self.label, len(ids), before.prompt, prompt, first=1)
            decoded.append(_row("decoded", self.label, len(ids), continuation, before.output, first=len(ids)))
        yield from decoded

    def batched(self, texts: Texts, single: Sequence[ScoredPrompt]) -> Iterator[LogprobRow]:
        """Compare one batch of all shorter texts, each twice, with single requests."""
        pairs = [(ids, before.prompt) for ids, before in zip(texts, single, strict=True) if len(ids) <= _BATCHED]
        batch = tuple(ids for ids, _ in pairs) * 2
        results = self.score(batch, description=f"{len(batch)} texts at once")
        for number, (ids, before) in enumerate(pairs):
            both = results[number], results[number + len(pairs)]
            compared_with = f"in a batch of {len(batch)}"
            rows = [_row(compared_with, self.label, len(ids), before, after.prompt, first=1) for after in both]
            yield max(rows, key=lambda row: row.overall.mean)

    def cached(self, texts: Texts, single: Sequence[ScoredPrompt]) -> Iterator[LogprobRow]:
        """Compare the second half of each text after a cached first half; yield nothing without a cache hit."""
        for ids, before in zip(texts, single, strict=True):
            start = len(ids) // 2
            (after,) = self.score((ids,), description=f"{len(ids)} tokens, half from cache", start=start)
            if after.cached_tokens:
                half, compared_with = _slice(before.prompt, start, None), f"{after.cached_tokens} cached"
                yield _row(compared_with, self.label, len(ids), half, after.prompt, first=start + 1)


def _slice(scores: TokenLogprobs, begin: int, end: int | None) -> TokenLogprobs:
    return TokenLogprobs(actual=scores.actual[begin:end], top=scores.top[begin:end])


def _row(
    compared_with: str, owner: str, length: int, before: TokenLogprobs, after: TokenLogprobs, *, first: int
) -> LogprobRow:
    overall, bands = diverge(before, after, first=first)
    return LogprobRow(compared_with=compared_with, rank_label=owner, length=length, overall=overall, bands=bands)
