"""Results side by side as plain text, for a terminal. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.core.console import table
from orchestrator.report.compare import Comparison, RateRow
from orchestrator.report.document import LayoutRow, Report
from orchestrator.results import Figure, figures

_WIDEST: Final = 40  # characters of a value that differs


def comparison_text(report: Report) -> str:
    """What is compared, each figure against the offered rate, the layouts, then what each evaluation can tell."""
    known = report.published
    parts = [f"published: {known.title} ({known.source}, {known.date})", ""] if known else []
    parts += [_header(index, comparison) for index, comparison in enumerate(report.comparisons)]
    parts += ["", *_rates(report), *([_layouts(report.layouts)] if report.layouts else []), *_differences(report)]
    parts += [
        f"{row.name}: {row.figure} {row.without:.4g} without, {row.whole:.4g} with, {row.ratio:.2f} times ({row.claim})"
        for row in report.ablations
    ]
    measured = [row for row in report.evals if row.measured and row.judgement is not None]
    parts += [f"{row.title}: {row.judgement.sentence}" for row in measured if row.judgement is not None]
    return "\n".join(parts) + "\n"


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"#{index + 1}"


def _header(index: int, comparison: Comparison) -> str:
    lines = [f"{_letter(index)}: {comparison.label}, {comparison.result.run.workload_name}"]
    if not comparison.comparable:
        lines.append("   NOT COMPARABLE:")
    lines += [f"   - {r.kind}{f' at {r.point}' if r.point else ''}: {r.detail}" for r in comparison.reasons]
    lines += [f"   {caveat}" for caveat in comparison.caveats]
    if (single := comparison.single_stream_tok_s) is not None:
        measured, published = figures.OUTPUT.text(single.measured), figures.OUTPUT.text(single.published)
        beside = f", {published} published" if single.published is not None else ""
        lines.append(f"   {measured} tok/s in a single stream{beside}")
    if (knee := comparison.knee_rps) is not None and knee.measured is not None:
        least = "" if comparison.knee_reached else "at least "
        lines.append(f"   knee: {least}{figures.plain(knee.measured)} rps")
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


def _differences(report: Report) -> Iterator[str]:
    """What the results do not have in common, but for digests and names that follow from it."""
    if report.differences:
        letters = [_letter(index) for index in range(len(report.comparisons))]
        yield "\n" + table(
            ("differs", *letters), [(each.key, *map(_short, each.values)) for each in report.differences]
        )


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else f"{value[: _WIDEST - 1]}…"


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
