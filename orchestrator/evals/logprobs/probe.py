"""The log-probabilities of fixed texts from a server, with several request variants.

They reveal within a minute a wrong kernel whose output still reads as good English. Each variant exercises other code:
a single prompt (prefill, chunked if long), the prompt with its decoded tokens (prefill against decoding), a batch
(other shapes), and a cached prefix (the KV cache).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.console import Progress
from orchestrator.core.secrets import excerpt
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.logprobs import ScoredPrompt, TokenLogprobs, read_numerics, read_scored
from orchestrator.engine.requests import scoring_body, tokenize_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError, token_ids
from orchestrator.evals.logprobs.divergence import diverge
from orchestrator.evals.logprobs.limits import noise_of
from orchestrator.evals.logprobs.reference import REFERENCE_SCHEMA, LogprobReference, TextScores, ids_digest
from orchestrator.evals.logprobs.report import ProbeFault, ProbeRow
from orchestrator.verify.target import Target

LENGTHS: Final = (64, 512, 2048, 8192)  # tokens; a response for the longest has 1.3 MB, and at most 2 MiB are read
TOP: Final = 5
_SAID: Final = 32  # tokens decoded after each text
_BATCHED: Final = 2048  # tokens of the longest text in the batch, which has each text twice
_CHARACTERS: Final = 12  # characters per token, above the average of any tokenizer
_LIMITS: Final = Timeouts(connect=5.0, idle=180.0, total=180.0)
_MOST_NAME: Final = 200  # characters

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


def cut_texts(client: EngineClient, target: Target, text: str, *, longest: int) -> Texts:
    """Return consecutive passages of a text as token ids, with the `LENGTHS` that fit the text and the context.

    Raises NoResponseError or UnexpectedResponseError if the server cannot tokenize, or if no length fits.
    """
    most = min(longest, target.context_length - 2 * _SAID)
    lengths = [length for length in LENGTHS if length <= most]
    body = tokenize_body(target.served_name, text[: _CHARACTERS * sum(lengths)])
    ids = token_ids(client.post(endpoints.TOKENIZE, body), "tokens")
    begins = [sum(lengths[:place]) for place in range(len(lengths))]
    texts = [ids[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
    whole = tuple(text for text, length in zip(texts, lengths, strict=True) if len(text) == length)
    if not whole:
        raise UnexpectedResponseError(
            f"a context of {target.context_length} tokens is too short for a text of {LENGTHS[0]}"
        )
    return whole


@dataclass(frozen=True, kw_only=True)
class RankScores:
    """The scores of single prompts from one rank, and their differences from the other request variants."""

    whose: str
    alone: tuple[ScoredPrompt, ...]
    rows: tuple[ProbeRow, ...]
    faults: tuple[ProbeFault, ...]
    beside: tuple[ProbeRow, ...] = ()  # comparisons with the reference, or with the first rank


def probe_rank(
    client: EngineClient, target: Target, texts: Texts, *, rank: int, whose: str, progress: Progress
) -> RankScores:
    """Score all texts on one data-parallel rank, named `whose`. Raises NoResponseError, UnexpectedResponseError."""
    asker = _Asker(
        client=client, rank=rank, told=lambda what: progress.update("logprobs", transient=f"{whose} {what}".strip())
    )
    alone = tuple(asker.score(text, what=f"{len(text)} tokens") for text in texts)
    ways: list[Callable[[], Iterator[ProbeRow]]] = [
        lambda: _again(asker, texts, alone, whose=whose),
        lambda: _batched(asker, texts, alone, whose=whose),
    ]
    if target.prefix_cache:
        ways.append(lambda: _cached(asker, texts, alone, whose=whose))
    rows: list[ProbeRow] = []
    faults: list[ProbeFault] = []
    for way in ways:
        try:
            rows += way()
        except (NoResponseError, UnexpectedResponseError) as error:
            faults.append(ProbeFault(whose=whose, message=str(error)))
    return RankScores(whose=whose, alone=alone, rows=tuple(rows), faults=tuple(faults))


def compare_with_reference(
    texts: Texts, alone: Sequence[ScoredPrompt], before: Sequence[TokenLogprobs], *, what: str, whose: str
) -> Iterator[ProbeRow]:
    """Yield the comparison of each text of a rank with earlier scores."""
    for ids, scored, likelihoods in zip(texts, alone, before, strict=True):
        yield _row(what, whose, len(ids), likelihoods, scored.prompt, first=1)


def make_reference(identity: Identity, texts: Texts, probed: RankScores) -> LogprobReference:
    """Return the scores of a rank as a reference."""
    scores = (
        TextScores(ids=ids, own=scored.prompt.own, top=scored.prompt.top)
        for ids, scored in zip(texts, probed.alone, strict=True)
    )
    return LogprobReference(
        schema_version=REFERENCE_SCHEMA,
        model=identity.model,
        source=identity.source,
        numerics=identity.numerics,
        ids_sha256=ids_digest(texts),
        noise=noise_of(probed.rows),
        top=TOP,
        texts=tuple(scores),
    )


def identify(client: EngineClient, *, source: str | None) -> Identity:
    """Return the checkpoint and numeric settings of a server. Raises NoResponseError, UnexpectedResponseError."""
    path = client.get(endpoints.MODEL_INFO).get("model_path")
    if not isinstance(path, str) or not path:
        raise UnexpectedResponseError(f"`{endpoints.MODEL_INFO}` has no model path")
    model = excerpt(path.rstrip("/").rpartition("/")[2], _MOST_NAME)
    return Identity(model=model, source=source, numerics=dict(read_numerics(client.get(endpoints.SERVER_INFO))))


@dataclass(frozen=True, kw_only=True)
class _Asker:
    """A client for one data-parallel rank."""

    client: EngineClient
    rank: int
    told: Callable[[str], None]

    def score(self, ids: tuple[int, ...], *, what: str, start: int = 0) -> ScoredPrompt:
        return self.scores((ids,), what=what, start=start)[0]

    def scores(self, prompts: Texts, *, what: str, start: int = 0) -> tuple[ScoredPrompt, ...]:
        """Score prompts from position `start` on. Raises UnexpectedResponseError if a score is missing."""
        self.told(what)
        body = scoring_body(prompts, top=TOP, tokens=_SAID, start=start, rank=self.rank)
        answers = self.client.post_list(endpoints.GENERATE, body)
        if len(answers) != len(prompts):
            raise UnexpectedResponseError(
                f"`{endpoints.GENERATE}` returned {len(answers)} results for {len(prompts)} prompts"
            )
        read = zip(answers, prompts, strict=True)
        return tuple(read_scored(answer, ids, start=start, tokens=_SAID, top=TOP) for answer, ids in read)


def _again(asker: _Asker, texts: Texts, alone: Sequence[ScoredPrompt], *, whose: str) -> Iterator[ProbeRow]:
    """Compare each prompt, followed by its decoded tokens, with the first request: prefill against decoding."""
    decoded = []
    for ids, before in zip(texts, alone, strict=True):
        after = asker.score((*ids, *before.said_ids), what=f"{len(ids)} tokens again").prompt
        prompt, said = _from(after, 0, len(ids) - 1), _from(after, len(ids) - 1, None)
        yield _row("asked again", whose, len(ids), before.prompt, prompt, first=1)
        decoded.append(_row("decoded", whose, len(ids), said, before.said, first=len(ids)))
    yield from decoded


def _batched(asker: _Asker, texts: Texts, alone: Sequence[ScoredPrompt], *, whose: str) -> Iterator[ProbeRow]:
    """Compare one batch of all shorter texts, each twice, with single requests."""
    chosen = [place for place, ids in enumerate(texts) if len(ids) <= _BATCHED]
    answers = asker.scores(tuple(texts[place] for place in chosen * 2), what=f"{2 * len(chosen)} texts at once")
    for place, *twice in zip(chosen, answers[: len(chosen)], answers[len(chosen) :], strict=True):
        what, length, before = f"in a batch of {len(answers)}", len(texts[place]), alone[place].prompt
        rows = [_row(what, whose, length, before, after.prompt, first=1) for after in twice]
        yield max(rows, key=lambda row: row.whole.mean)


def _cached(asker: _Asker, texts: Texts, alone: Sequence[ScoredPrompt], *, whose: str) -> Iterator[ProbeRow]:
    """Compare the second half of each text after a cached first half; yield nothing without a cache hit."""
    for ids, before in zip(texts, alone, strict=True):
        start = len(ids) // 2
        after = asker.score(ids, what=f"{len(ids)} tokens, half from cache", start=start)
        if after.cached_tokens:
            half = _from(before.prompt, start, None)
            yield _row(f"{after.cached_tokens} cached", whose, len(ids), half, after.prompt, first=start + 1)


def _from(scores: TokenLogprobs, begin: int, end: int | None) -> TokenLogprobs:
    return TokenLogprobs(own=scores.own[begin:end], top=scores.top[begin:end])


def _row(what: str, whose: str, length: int, before: TokenLogprobs, after: TokenLogprobs, *, first: int) -> ProbeRow:
    whole, bands = diverge(before, after, first=first)
    return ProbeRow(what=what, whose=whose, length=length, whole=whole, bands=bands)
