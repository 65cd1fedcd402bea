"""`deploy logprobs`: the log-probabilities of a server compared with a reference of the same checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import Progress, warn
from orchestrator.core.errors import BenchError, HostError, SmokeError
from orchestrator.core.files import atomic_write, read_file
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.engine.client import EngineClient
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.evals.logprobs import probe
from orchestrator.evals.logprobs.limits import mean_limit, measure_noise, numeric_differences
from orchestrator.evals.logprobs.probe import Identity, RankScores
from orchestrator.evals.logprobs.reference import (
    MAX_REFERENCE_BYTES,
    LogprobReference,
    reference_from_json,
    reference_to_json,
)
from orchestrator.evals.logprobs.report import ProbeFault, ProbeReport, ProbeRow
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import RunDir
from orchestrator.verify.target import Target

REPORT_FILE: Final = "logprobs.json"
_TEXT: Final = "alice"  # in profiles/texts, public domain
_MAX_TEXT: Final = 1 << 18  # bytes


@dataclass(frozen=True, kw_only=True)
class ProbeSide:
    """A server to compare: its engines by name ("" for the only one), its checkpoint source and its run."""

    name: str
    engines: tuple[tuple[str, Target], ...]
    source: str | None
    run: RunDir | None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """The options of `deploy logprobs`; `tolerance` is in nats, `max_length` is that of a text in tokens."""

    tolerance: float | None
    max_length: int
    allow_other_checkpoint: bool


def load_reference(file: Path) -> LogprobReference:
    """Read a reference written by `--save`. Raises BenchError if that fails."""
    try:
        text = read_file(file, most=MAX_REFERENCE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BenchError(f"cannot read the reference: {reason}", location=str(file)) from error
    return reference_from_json(text, location=str(file))


def save_reference(reference: LogprobReference, file: Path) -> None:
    """Write a reference atomically. Raises BenchError if that fails."""
    try:
        atomic_write(file, reference_to_json(reference))
    except OSError as error:
        raise BenchError(f"cannot write the reference: {error.strerror}", location=str(error.filename)) from error


def measure_reference(side: ProbeSide, options: ProbeOptions) -> LogprobReference:
    """Return the scores of the first rank of another server as a reference. Raises SmokeError if a request fails."""
    first = replace(side, engines=side.engines[:1])
    report, reference = run_probe(first, None, replace(options, tolerance=None), reference_name=None, ranks=1)
    report.require()
    return reference


def run_probe(
    side: ProbeSide,
    reference: LogprobReference | None,
    options: ProbeOptions,
    *,
    reference_name: str | None,
    ranks: int | None = None,
) -> tuple[ProbeReport, LogprobReference]:
    """Score the texts on every rank of every engine; return the report, and the scores of the first rank.

    `ranks` is the number of ranks per engine (default: all). Raises SmokeError if
    the first rank fails, BenchError if the reference does not match the server.
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
    return comparison.report(results, reference_name=reference_name), comparison.as_reference(results)


class _Comparison:
    """The comparison of one server with an optional reference."""

    def __init__(
        self, side: ProbeSide, reference: LogprobReference | None, options: ProbeOptions, progress: Progress
    ) -> None:
        self._side, self._reference, self._options, self._progress = side, reference, options, progress
        target = side.engines[0][1]
        with probe.open_client(target) as client:
            self._identity = probe.identify(client, source=side.source)
            if reference is not None and not options.allow_other_checkpoint:
                _require_same_checkpoint(self._identity, reference)
            self._texts = self._cut(client, target)

    def run(self, ranks: int | None) -> Iterator[RankScores | ProbeFault]:
        """Yield the scores of each rank, or a fault if it fails; a failure of the first rank is raised."""
        ignore_sigpipe()
        first: RankScores | None = None
        for engine, target in self._side.engines:
            with probe.open_client(target) as client:
                for rank in range(ranks or target.dp):
                    label = ", ".join(filter(None, [engine, f"rank {rank}" if target.dp > 1 else ""]))
                    try:
                        scores = probe.probe_rank(
                            client, target, self._texts, rank=rank, label=label, progress=self._progress
                        )
                    except (NoResponseError, UnexpectedResponseError) as error:
                        if first is None:
                            raise
                        yield ProbeFault(whose=label, message=str(error))
                        continue
                    # Only the scores of the first rank are needed later: 8 MiB per rank.
                    yield replace(
                        scores, single=() if first else scores.single, comparisons=self._compare(scores, first)
                    )
                    first = first or scores

    def report(self, results: tuple[RankScores | ProbeFault, ...], *, reference_name: str | None) -> ProbeReport:
        """Return the report; `--tolerance` limits the comparison with the reference, noise limits the other rows."""
        ranks = [result for result in results if isinstance(result, RankScores)]
        noise = measure_noise(row for rank in ranks for row in rank.rows)
        requested, numerics = self._options.tolerance, self._identity.numerics
        limit = mean_limit(self._reference, numerics, noise=noise, requested=requested)
        inner = mean_limit(self._reference, numerics, noise=noise, requested=None) if self._reference else limit
        rows: list[ProbeRow] = []
        for rank in ranks:
            rows += (row.judged(limit.maximum) for row in rank.comparisons)
            rows += (row.judged(inner.maximum) for row in rank.rows)
        faults = [result for result in results if isinstance(result, ProbeFault)]
        before = self._reference.numerics if self._reference else numerics
        return ProbeReport(
            url=self._side.engines[0][1].url,
            served_name=self._side.name,
            against=reference_name,
            differences=numeric_differences(before, numerics),
            basis=limit.basis,
            rows=tuple(rows),
            faults=(*faults, *(fault for rank in ranks for fault in rank.faults)),
        )

    def as_reference(self, results: tuple[RankScores | ProbeFault, ...]) -> LogprobReference:
        """Return the scores of the first rank as a reference."""
        first = next(result for result in results if isinstance(result, RankScores))
        return probe.make_reference(self._identity, self._texts, first)

    def _compare(self, scores: RankScores, first: RankScores | None) -> tuple[ProbeRow, ...]:
        """Compare a rank with the reference, else with the first rank."""
        if self._reference is not None:
            before = [text.logprobs for text in self._reference.texts]
            return probe.compare_ranks(self._texts, scores, before, what="the reference")
        if first is not None:
            before = [scored.prompt for scored in first.single]
            return probe.compare_ranks(self._texts, scores, before, what="the first rank")
        return ()

    def _cut(self, client: EngineClient, target: Target) -> probe.Texts:
        """Return the texts as token ids of this server. Raises BenchError if those of the reference differ."""
        text = read_file(Catalog.shipped().path(EntryKind.TEXT, _TEXT), most=_MAX_TEXT).decode()
        self._progress.update("logprobs", transient="tokenizing")
        texts = probe.cut_texts(client, target, text, max_length=self._options.max_length)
        if self._reference is not None:
            before = tuple(each.ids for each in self._reference.texts)
            if before[: len(texts)] != texts[: len(before)]:
                hint = "write a reference with this tokenizer: `--save FILE`"
                raise BenchError("the reference has different tokens for the same text", hint=hint)
            texts = texts[: len(before)]
            self._reference = replace(self._reference, texts=self._reference.texts[: len(texts)])
        return texts


def save_report(side: ProbeSide, report: ProbeReport) -> None:
    """Save the report in the run directory of a server; only warn if that fails, so that the report is printed."""
    if side.run is None:
        return
    try:
        side.run.save(REPORT_FILE, report.to_dict())
    except HostError as error:
        warn(f"cannot save the reference: {error.message}", hint=error.hint)


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
            f"the reference is of another checkpoint: `{other}`, not `{server}`",
            hint="`--allow-other-checkpoint` compares anyway; set a `--tolerance` with it",
        )
