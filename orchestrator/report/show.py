"""Results side by side as plain text, for a terminal. Pure."""

from collections.abc import Iterator, Mapping

from orchestrator.core.console import table
from orchestrator.report.compare import Comparison, RateRow
from orchestrator.report.document import LayoutRow, Report
from orchestrator.results import Figure, figures


def comparison_text(report: Report) -> str:
    """What is compared, each figure against the offered rate, the layouts, then what each evaluation can tell."""
    parts = [f"published: {report.published.title} ({report.published.source}, {report.published.date})", ""]
    parts += [_header(index, comparison) for index, comparison in enumerate(report.comparisons)]
    parts += ["", *_rates(report), _layouts(report.layouts)]
    measured = [row for row in report.evals if row.measured and row.judgement is not None]
    parts += [f"{row.title}: {row.judgement.sentence}" for row in measured if row.judgement is not None]
    return "\n".join(parts) + "\n"


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"#{index + 1}"


def _header(index: int, comparison: Comparison) -> str:
    lines = [f"{_letter(index)}: {comparison.label}, {comparison.result.run.workload_name}"]
    if not comparison.comparable:
        lines.append("   NOT COMPARABLE with the published figures:")
    lines += [f"   - {r.kind}{f' at {r.point}' if r.point else ''}: {r.detail}" for r in comparison.reasons]
    lines += [f"   {caveat}" for caveat in comparison.caveats]
    if (single := comparison.single_stream_tok_s) is not None:
        measured, published = figures.OUTPUT.text(single.measured), figures.OUTPUT.text(single.published)
        lines.append(f"   {measured} tok/s in a single stream, {published} published")
    return "\n".join(lines)


def _rates(report: Report) -> Iterator[str]:
    """A table for each figure that was measured: a line a rate, a column a result."""
    sides = {
        _letter(index): {row.rate_rps: row for row in comparison.rows}
        for index, comparison in enumerate(report.comparisons)
        if comparison.rows
    }
    for figure in figures.BY_RATE:
        if any(row.of(figure).measured is not None for rows in sides.values() for row in rows.values()):
            yield _rate_table(figure, sides) + "\n"


def _rate_table(figure: Figure, sides: Mapping[str, Mapping[float, RateRow]]) -> str:
    """One figure against the rate; what was published stands in it where a result may be set beside it."""
    rows_by_rate = [pair for rows in sides.values() for pair in rows.items()]
    published = {rate: value for rate, row in rows_by_rate if (value := row.of(figure).published) is not None}
    columns: dict[str, Mapping[float, float | None]] = {"published": published} if published else {}
    columns |= {letter: {rate: row.of(figure).measured for rate, row in rows.items()} for letter, rows in sides.items()}
    lines = [
        (f"{figures.plain(rate)} rps", *(figure.text(column.get(rate), "-") for column in columns.values()))
        for rate in sorted({rate for rate, _ in rows_by_rate})
    ]
    return table((figure.title, *columns), lines)


def _layouts(rows: tuple[LayoutRow, ...]) -> str:
    known = [figure for figure in figures.BY_LAYOUT if any(row.figures[figure.key] is not None for row in rows)]
    lines = [
        (
            row.system,
            row.layout,
            "published" if row.comparison is None else _letter(row.comparison),
            figures.count(row.tok_s),
            figures.plain(row.rate_rps) if row.rate_rps is not None else "-",
            *(figure.text(row.figures[figure.key], "-") for figure in known),
        )
        for row in rows
    ]
    header = ("system", "layout", "whose", figures.OUTPUT.title, "at rps", *(figure.title for figure in known))
    return table(header, lines)
