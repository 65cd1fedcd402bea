"""The report as data, shared by its HTML and JSON renderings and by `deploy compare`. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from orchestrator.bench import metrics
from orchestrator.bench.published import PriceBook, Published, PublishedLayout
from orchestrator.bench.result import BenchResult
from orchestrator.bench.workload import workload_name
from orchestrator.evals.eval_result import EvalResult
from orchestrator.evals.report import EvalRow, measured_evals, published_eval
from orchestrator.plan.diff import Difference
from orchestrator.report.compare import Comparison, compare
from orchestrator.report.configuration import Fact, differing, facts_of
from orchestrator.report.headline import headline, title_of, with_names
from orchestrator.report.side_by_side import SideBySide, side_by_side

_LAYOUT_METRICS: Final = metrics.metrics_for(metrics.DisplayIn.LAYOUT)
EvalPairs: TypeAlias = tuple[tuple[EvalResult | None, EvalResult], ...]  # baseline (None: published score), candidate


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """One metric measured with and without a feature."""

    name: str
    claim: str
    metric: str  # name of the metric, with its unit
    without_feature: float
    with_feature: float

    @property
    def ratio(self) -> float:
        """The metric with the feature divided by the metric without it."""
        return self.with_feature / self.without_feature


@dataclass(frozen=True, kw_only=True)
class LayoutRow:
    """The best result of one layout on one system, published or measured; `tok_s` is output tok/s per node."""

    system: str
    layout: str
    comparison: int | None  # index of the measured result; None for a published row
    comparable: bool
    rate_rps: float | None
    tok_s: float
    change: float | None  # measured / best published of the same system and layout - 1
    metrics: Mapping[str, float | None]  # the other metrics at this rate, by metric key
    note: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """A complete report; `published` is None if there is no published measurement to compare with."""

    title: str
    headline: tuple[str, ...]  # the main results, in sentences
    published: Published | None
    comparisons: tuple[Comparison, ...]
    facts: tuple[Fact, ...]
    differences: tuple[Difference, ...]
    side_by_side: SideBySide
    layouts: tuple[LayoutRow, ...]
    evals: tuple[EvalRow, ...]
    ablations: tuple[AblationRow, ...]
    price_notes: tuple[str, ...]  # prices and power, with sources


def build_report(
    results: tuple[BenchResult, ...],
    *,
    published: Published | None,
    prices: PriceBook,
    directories: tuple[str, ...] = (),
    evals: EvalPairs = (),
    watts: Mapping[str, float] | None = None,
) -> Report:
    """Build a report from results and published measurements.

    `directories` name the results without a label. `watts` is the power of a node under load, by GPU in lower case; ""
    is any GPU.
    """
    comparisons = with_names(tuple(compare(result, published, prices) for result in results), directories)
    together = side_by_side(comparisons)
    eval_rows = (
        *map(published_eval, published.evals if published else ()),
        *(row for pair in evals for row in measured_evals(published, *pair)),
    )
    sentences = headline(comparisons, together, published=published is not None)
    return Report(
        title=title_of(comparisons, published.title if published else None),
        headline=sentences if comparisons else tuple(_scores(eval_rows)),
        published=published,
        comparisons=comparisons,
        facts=facts_of(comparisons),
        differences=differing(comparisons),
        side_by_side=together,
        layouts=_layouts(published, comparisons, prices) if published else (),
        evals=eval_rows,
        ablations=tuple(_ablations(published, comparisons)) if published else (),
        price_notes=(*_price_notes(published, comparisons, prices), *_power_notes(comparisons, watts or {})),
    )


def _scores(rows: Sequence[EvalRow]) -> Iterator[str]:
    """Yield one sentence per measured score, in a report without benchmark results."""
    for row in rows:
        if row.measured:
            judgment = row.judgment.sentence if row.judgment else "not comparable"
            yield f"{row.title}: {row.candidate:.4f}, against {row.baseline:.4f} ({row.baseline_label}): {judgment}."


def _ablations(published: Published, comparisons: tuple[Comparison, ...]) -> Iterator[AblationRow]:
    """Yield the rows of each ablation whose two servers were measured on the same workload."""
    measured = {
        (comparison.result.run.provenance.name, comparison.result.run.workload_name): comparison
        for comparison in comparisons
    }
    for ablation in published.reproduce.ablations:
        for name in map(workload_name, ablation.workloads):
            without, full = measured.get((ablation.server, name)), measured.get((ablation.full_server, name))
            if without is None or full is None:
                continue
            with_it = _answers(full)
            for metric, value in _answers(without).items():
                if value and (other := with_it.get(metric)):
                    yield AblationRow(
                        name=ablation.name,
                        claim=ablation.claim,
                        metric=metric,
                        without_feature=value,
                        with_feature=other,
                    )


def _answers(comparison: Comparison) -> dict[str, float | None]:
    """Return the metrics that show the effect of an ablation: from a single stream, else from the knee."""
    if comparison.single_stream_tok_s is not None:
        return {"single stream, tok/s": comparison.single_stream_tok_s.measured}
    best = comparison.best
    output = best.of(metrics.OUTPUT).measured if best else None
    return {"knee, rps": comparison.knee_rps.measured if comparison.knee_rps else None, "knee, tok/s": output}


def _price_notes(
    published: Published | None, comparisons: tuple[Comparison, ...], prices: PriceBook
) -> tuple[str, ...]:
    """Return the prices used for costs, with sources, and the publication's claims about prices and power."""
    notes: dict[str, str] = {}
    for line in published.layouts if published else ():
        gpu = line.system.partition("×")[2]
        price, source = prices.gpu_price(gpu)
        if price is not None:
            notes.setdefault(f"${price:.2f} per GPU-hour, {source}", gpu)
    for comparison in comparisons:
        if comparison.usd_per_gpu_hour is not None:
            price_text = f"${comparison.usd_per_gpu_hour:.2f} per GPU-hour, {comparison.price_source}"
            notes.setdefault(price_text, comparison.label)
    lines = tuple(f"{label}: {price_text}" for price_text, label in notes.items())
    if published is None:
        return lines
    return (*lines, *_price_claims(published, prices), *_of_the_pair(published))


def _power_notes(comparisons: tuple[Comparison, ...], watts: Mapping[str, float]) -> Iterator[str]:
    """Yield the output tok/s at the knee per watt of the node, for each result with known power."""
    for comparison in comparisons:
        power = watts.get((comparison.result.run.provenance.gpu or "").lower(), watts.get(""))
        tok_s = comparison.best.of(metrics.OUTPUT).measured if comparison.best is not None else None
        if power is not None and tok_s is not None:
            per_watt = f"{tok_s / power:.3g} output tok/s per watt of the node"
            yield f"{comparison.label}: {per_watt} at the knee ({power:g} W, given)"


def _price_claims(published: Published, prices: PriceBook) -> Iterator[str]:
    """Yield the published price ratios, each with the ratio of the known prices."""
    for claim in (claim.price for claim in published.claims if claim.price is not None):
        (cheap, _), (expensive, _) = (prices.gpu_price(gpu) for gpu in (claim.gpu, claim.than))
        stated = f"the post says that {claim.gpu} is {claim.times:g} times cheaper per GPU than {claim.than}"
        if cheap and expensive:
            yield f"{stated}; at ${cheap:.2f} and ${expensive:.2f} per GPU-hour it is {expensive / cheap:.2f} times"
        else:
            unknown = claim.than if cheap else claim.gpu
            yield f"{stated}; price of {unknown} unknown: set it with `--price {unknown}=USD`"


def _of_the_pair(published: Published) -> Iterator[str]:
    """Yield the published throughput of one system as a share of the other's, and both per watt of board power."""
    best: dict[str, float] = {}
    for line in published.layouts:
        best[line.system] = max(line.output_tok_s, best.get(line.system, 0.0))
    if len(best) != 2:
        return
    (low_system, low), (high_system, high) = sorted(best.items(), key=lambda pair: pair[1])
    yield (
        f"{low_system} reaches {low / high:.0%} of {high_system} as published: {low:,.0f} and {high:,.0f} output tok/s "
        "per node"
    )
    watts = {board.gpu: board.watts for board in published.power}
    rows = []
    for system, tok_s in best.items():
        count, _, gpu = system.partition("×")
        if gpu in watts:
            rows.append(f"{tok_s / (int(count) * watts[gpu]):.3f} on {system} ({count} × {watts[gpu]:,} W)")
    if rows:
        yield f"published output tok/s per watt of rated board power: {' and '.join(rows)}"


def _layouts(published: Published, comparisons: tuple[Comparison, ...], prices: PriceBook) -> tuple[LayoutRow, ...]:
    """Return the published layouts in their order, each followed by its measured rows, then the unpublished layouts."""
    candidates = (_measured_layout(index, comparison, published) for index, comparison in enumerate(comparisons))
    measured = [row for row in candidates if row is not None]
    rows: list[LayoutRow] = []
    last = {(line.system, line.layout): index for index, line in enumerate(published.layouts)}
    for index, line in enumerate(published.layouts):
        rows.append(_published_layout(line, published, prices))
        matching = [row for row in measured if last.get(_match(row, published)) == index]
        rows += matching
        measured = [row for row in measured if row not in matching]
    return (*rows, *measured)


def _match(row: LayoutRow, published: Published) -> tuple[str, str]:
    """Return system and layout of the matching published row, which may be the system's "not published" layout."""
    rows_published = {(line.system, line.layout) for line in published.layouts}
    unnamed = (row.system, "not published")
    return (
        unnamed
        if (row.system, row.layout) not in rows_published and unnamed in rows_published
        else (row.system, row.layout)
    )


def _published_layout(line: PublishedLayout, published: Published, prices: PriceBook) -> LayoutRow:
    count, _, gpu = line.system.partition("×")
    price, _ = prices.gpu_price(gpu)
    hourly = price * int(count) if price else None
    at_rate = (row for row in published.rates if row.rate_rps == line.rate_rps)
    is_table = (line.system, line.layout) == (published.rates_system, published.rates_layout)
    row = next(at_rate, None) if is_table else None
    return LayoutRow(
        system=line.system,
        layout=f"{line.layout}, {line.variant}" if line.variant else line.layout,
        comparison=None,
        comparable=True,
        rate_rps=line.rate_rps,
        tok_s=line.output_tok_s,
        change=None,
        metrics=dict.fromkeys(metric.key for metric in _LAYOUT_METRICS)
        | {
            metrics.TTFT_P95.key: row.ttft_p95_s if row and row.output_tok_s == line.output_tok_s else None,
            metrics.USD.key: metrics.usd_per_million_tokens(hourly, line.output_tok_s),
        },
        note=line.caveat,
    )


def _measured_layout(index: int, comparison: Comparison, published: Published) -> LayoutRow | None:
    best = comparison.best
    tok_s = best.of(metrics.OUTPUT).measured if best is not None else None
    if best is None or tok_s is None:
        return None
    row = LayoutRow(
        system=comparison.system,
        layout=comparison.layout,
        comparison=index,
        comparable=comparison.comparable,
        rate_rps=best.rate_rps,
        tok_s=tok_s,
        change=None,
        metrics={metric.key: best.of(metric).measured for metric in _LAYOUT_METRICS},
        note="" if comparison.comparable else "not comparable",
    )
    key = _match(row, published)
    published_tok_s = [line.output_tok_s for line in published.layouts if (line.system, line.layout) == key]
    return replace(row, change=tok_s / max(published_tok_s) - 1) if published_tok_s and comparison.comparable else row
