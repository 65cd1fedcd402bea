"""`deploy logprobs`: the log-probabilities of a server compared with a reference of the same checkpoint.

The limit for the difference is a multiple of the measured noise, but at least of the rounding noise.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import Progress
from orchestrator.core.errors import BenchError, SmokeError
from orchestrator.core.files import read_file
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.engine.client import EngineClient
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.evals.logprobs import scoring
from orchestrator.evals.logprobs.reference import REFERENCE_SCHEMA, LogprobReference, TextScores, ids_digest
from orchestrator.evals.logprobs.report import LogprobReport, LogprobRow
from orchestrator.evals.logprobs.scoring import Identity, RankScores
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import RunDir
from orchestrator.verify.target import Target

REPORT_FILE: Final = "logprobs.json"
_TEXT: Final = "alice"  # in profiles/texts, public domain
_MAX_TEXT: Final = 1 << 18  # bytes
# Correct servers of one model, with different layouts or fp32 against bf16, differed by 0.7 to 1.7 times this noise;
# detected injected errors caused 4 times or more (measured by this project).
_FACTOR: Final = 4.0
# Nats; decoding against prefill of the tiny model (two layers) on a CPU. Larger models have more noise (measured).
_MIN_BF16: Final = 5e-4
_MIN_FP32: Final = 5e-7
_FP32: Final = frozenset({"float32", "float"})
_ROUNDING: Final = ("dtype", "quantization", "kv_cache_dtype")  # settings that affect rounding


@dataclass(frozen=True, kw_only=True)
class LogprobSide:
    """A server to compare: its engines by name ("" for the only one), its checkpoint source and its run."""

    name: str
    engines: tuple[tuple[str, Target], ...]
    source: str | None
    run: RunDir | None


@dataclass(frozen=True, kw_only=True)
class LogprobOptions:
    """The options of `deploy logprobs`; `tolerance` is in nats, `max_length` is the tokens of a text."""

    tolerance: float | None
    max_length: int
    allow_other_checkpoint: bool


def measure_reference(side: LogprobSide, options: LogprobOptions) -> LogprobReference:
    """Return the scores of the first rank of another server as a reference. Raises SmokeError if a request fails."""
    first = replace(side, engines=side.engines[:1])
    return run_logprobs(first, None, replace(options, tolerance=None), reference_name=None, ranks=1)[1]


def run_logprobs(
    side: LogprobSide,
    reference: LogprobReference | None,
    options: LogprobOptions,
    *,
    reference_name: str | None,
    ranks: int | None = None,
) -> tuple[LogprobReport, LogprobReference]:
    """Score the texts on every rank of every engine; return the report, and the scores of the first rank.

    `ranks` is the number of ranks per engine (default: all). Raises SmokeError if a request fails, BenchError if the
    reference does not match the server.
    """
    progress = Progress()
    try:
        comparison = _Comparison(side, reference, options, progress)
        results = tuple(comparison.run(ranks))
    except (NoResponseError, UnexpectedResponseError) as error:
        url = side.engines[0][1].url
        raise SmokeError(f"`{side.name}` returns no log-probabilities: {error}", location=url) from error
    finally:
        progress.done()
    return comparison.report(results, reference_name=reference_name), comparison.to_reference(results[0])


class _Comparison:
    """The comparison of one server with an optional reference."""

    def __init__(
        self, side: LogprobSide, reference: LogprobReference | None, options: LogprobOptions, progress: Progress
    ) -> None:
        self._side, self._reference, self._options, self._progress = side, reference, options, progress
        target = side.engines[0][1]
        with scoring.open_client(target) as client:
            self._identity = scoring.identify(client, source=side.source)
            if reference is not None and not options.allow_other_checkpoint:
                _require_same_checkpoint(self._identity, reference)
            self._texts = self._cut(client, target)

    def run(self, ranks: int | None) -> Iterator[RankScores]:
        """Yield the scores of each rank."""
        ignore_sigpipe()
        first: RankScores | None = None
        for engine, target in self._side.engines:
            with scoring.open_client(target) as client:
                for rank in range(ranks or target.dp):
                    label = ", ".join(filter(None, [engine, f"rank {rank}" if target.dp > 1 else ""]))
                    try:
                        scores = scoring.score_rank(
                            client, target, self._texts, rank=rank, label=label, progress=self._progress
                        )
                    except (NoResponseError, UnexpectedResponseError) as error:
                        raise UnexpectedResponseError(f"{label}: {error}" if label else str(error)) from error
                    # Only the scores of the first rank are needed later; the scores of a rank take 8 MiB.
                    yield replace(
                        scores, single=() if first else scores.single, comparisons=self._compare(scores, first)
                    )
                    first = first or scores

    def report(self, ranks: tuple[RankScores, ...], *, reference_name: str | None) -> LogprobReport:
        """Return the report; `--tolerance` limits the comparison with the reference, noise limits the other rows."""
        noise = _measure_noise(row for rank in ranks for row in rank.rows)
        requested, numerics = self._options.tolerance, self._identity.numerics
        limit, basis = _mean_limit(self._reference, numerics, noise=noise, requested=requested)
        inner, _ = _mean_limit(self._reference, numerics, noise=noise, requested=None if self._reference else requested)
        rows: list[LogprobRow] = []
        for rank in ranks:
            rows += (row.with_limit(limit) for row in rank.comparisons)
            rows += (row.with_limit(inner) for row in rank.rows)
        before = self._reference.numerics if self._reference else numerics
        return LogprobReport(
            ok=not any(row.above_limit for row in rows),
            url=self._side.engines[0][1].url,
            served_name=self._side.name,
            reference=reference_name,
            differences=_numeric_differences(before, numerics),
            basis=basis,
            rows=tuple(rows),
        )

    def to_reference(self, first: RankScores) -> LogprobReference:
        """Return the scores of the first rank as a reference."""
        text_scores = (
            TextScores(ids=ids, actual=scored.prompt.actual, top=scored.prompt.top)
            for ids, scored in zip(self._texts, first.single, strict=True)
        )
        return LogprobReference(
            schema_version=REFERENCE_SCHEMA,
            model=self._identity.model,
            source=self._identity.source,
            numerics=self._identity.numerics,
            ids_sha256=ids_digest(self._texts),
            noise=_measure_noise(first.rows),
            top=scoring.TOP,
            texts=tuple(text_scores),
        )

    def _compare(self, scores: RankScores, first: RankScores | None) -> tuple[LogprobRow, ...]:
        if self._reference is not None:
            before = [text.logprobs for text in self._reference.texts]
            return scoring.compare_ranks(self._texts, scores, before, compared_with="the reference")
        if first is not None:
            before = [scored.prompt for scored in first.single]
            return scoring.compare_ranks(self._texts, scores, before, compared_with="the first rank")
        return ()

    def _cut(self, client: EngineClient, target: Target) -> scoring.Texts:
        """Return the texts as this server's token ids. Raises BenchError if the reference has others."""
        passage = read_file(Catalog.shipped().path(EntryKind.TEXT, _TEXT), max_bytes=_MAX_TEXT).decode()
        self._progress.update("logprobs", transient="tokenizing")
        texts = scoring.cut_texts(client, target, passage, max_length=self._options.max_length)
        if self._reference is not None:
            before = tuple(known.ids for known in self._reference.texts)
            if before[: len(texts)] != texts[: len(before)]:
                hint = "write a reference with this tokenizer: `--save FILE`"
                raise BenchError("the reference has different tokens for the same text", hint=hint)
            texts = texts[: len(before)]
            self._reference = replace(self._reference, texts=self._reference.texts[: len(texts)])
        return texts


def checkpoint_source(plan: Plan) -> str:
    """Return the location of the plan's checkpoint, with its revision if pinned."""
    source = plan.model.checkpoint
    return f"{source.path}@{source.revision}" if source.revision else source.path


def _require_same_checkpoint(identity: Identity, reference: LogprobReference) -> None:
    """Raise BenchError if the checkpoints differ, by source if both are known, else by directory name."""
    both = identity.source is not None and reference.source is not None
    server, other = (identity.source, reference.source) if both else (identity.model, reference.model)
    if server != other:
        raise BenchError(
            f"the reference is for another checkpoint: `{other}`, not `{server}`",
            hint="`--allow-other-checkpoint` compares anyway; set a `--tolerance` with it",
        )


def _measure_noise(rows: Iterable[LogprobRow]) -> float:
    """Return the noise of a server: the largest mean difference of a text between two request variants, in nats."""
    return max((row.overall.mean for row in rows), default=0.0)


def _mean_limit(
    reference: LogprobReference | None, numerics: Mapping[str, str], *, noise: float, requested: float | None
) -> tuple[float | None, str]:
    """Return the maximum mean difference in nats (None: no verdict) from a reference, and its basis as text.

    `noise` is the server's noise in nats, `requested` the user's limit. With equal rounding settings, the limit
    follows from the reference's noise, else from the noisier side's.
    """
    if requested is not None:
        return requested, f"a mean of at most {requested:.2g} nats, as requested"
    if reference is None:
        return None, "no limit: it is measured on a reference, which `--save FILE` writes"
    differ = [key for key in _ROUNDING if reference.numerics.get(key) != numerics.get(key)]
    minimum = max(_minimum_noise(reference.numerics), _minimum_noise(numerics) if differ else 0.0)
    noise = max(reference.noise, noise if differ else 0.0, minimum)
    side = f"of both sides, which differ in {', '.join(f'`{key}`' for key in differ)}" if differ else "of the reference"
    source = "the minimum of its rounding" if noise == minimum else "between its own requests"
    basis = f"a mean of at most {_FACTOR * noise:.2g} nats: {_FACTOR:g} times the noise {side}, {noise:.2g}, {source}"
    return _FACTOR * noise, basis


def _minimum_noise(numerics: Mapping[str, str]) -> float:
    """Return the rounding noise in nats; dtype `auto` counts as bf16, since no checkpoint ships in fp32."""
    return _MIN_FP32 if numerics.get("dtype") in _FP32 else _MIN_BF16


def _numeric_differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"`{key}` is {after.get(key, 'unknown')} on the server, {before.get(key, 'unknown')} in the reference"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
