"""The best result of each layout and system, measured and published. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.bench import metrics
from orchestrator.bench.published import PriceBook, Published, PublishedLayout
from orchestrator.report.compare import Comparison

_METRICS = metrics.metrics_for(metrics.DisplayIn.LAYOUT)


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


def layouts_of(published: Published, comparisons: tuple[Comparison, ...], prices: PriceBook) -> tuple[LayoutRow, ...]:
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
    """Return system and layout of the matching published row; it may be the "not published" layout of the system."""
    known = {(line.system, line.layout) for line in published.layouts}
    unnamed = (row.system, "not published")
    return unnamed if (row.system, row.layout) not in known and unnamed in known else (row.system, row.layout)


def _published_layout(line: PublishedLayout, published: Published, prices: PriceBook) -> LayoutRow:
    count, _, gpu = line.system.partition("×")
    price, _ = prices.price_of(gpu)
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
        metrics=dict.fromkeys(metric.key for metric in _METRICS)
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
        metrics={metric.key: best.of(metric).measured for metric in _METRICS},
        note="" if comparison.comparable else "not comparable",
    )
    key = _match(row, published)
    beside = [line.output_tok_s for line in published.layouts if (line.system, line.layout) == key]
    return replace(row, change=tok_s / max(beside) - 1) if beside and comparison.comparable else row
