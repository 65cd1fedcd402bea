"""Results side by side as plain text, for a terminal. Pure."""

from orchestrator.core.console import table
from orchestrator.report.compare import Comparison, Row
from orchestrator.report.document import Report
from orchestrator.report.render import ABSENT, count, plain, seconds, share, usd


def comparison_text(report: Report) -> str:
    """What is compared, each against the offered rate, then the layouts, then what each evaluation can tell."""
    parts = [f"published: {report.published.title} ({report.published.source}, {report.published.date})", ""]
    parts += [_header(index, comparison) for index, comparison in enumerate(report.comparisons)]
    rates = sorted({row.rate_rps for comparison in report.comparisons for row in comparison.rows})
    if rates:
        parts += ["", _rates(report, rates)]
    parts += ["", _layouts(report)]
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
        lines.append(f"   {count(single.measured)} tok/s in a single stream, {count(single.published)} published")
    return "\n".join(lines)


def _rates(report: Report, rates: list[float]) -> str:
    """One line a rate; the published figures stand in it where a result may be set beside them."""
    measured = [(_letter(i), {row.rate_rps: row for row in c.rows}) for i, c in enumerate(report.comparisons) if c.rows]
    beside = any(row.output_tok_s.published is not None for _, rows in measured for row in rows.values())
    published = {line.rate_rps: line for line in report.published.rates if beside}
    letters = [letter for letter, _ in measured]
    header = ["rps", *(["tok/s published"] if beside else []), *(f"tok/s {letter}" for letter in letters)]
    header += [*(["TTFT p95 published"] if beside else []), *(f"TTFT p95 {letter}" for letter in letters)]
    header += [f"success {letter}" for letter in letters] + [f"$/M {letter}" for letter in letters]
    lines = []
    for rate in rates:
        line, rows = published.get(rate), [by_rate.get(rate) for _, by_rate in measured]
        cells = [plain(rate), *([count(line.output_tok_s if line else None)] if beside else []), *map(_tok_s, rows)]
        cells += [*([seconds(line.ttft_p95_s if line else None)] if beside else []), *map(_ttft, rows)]
        cells += [share(row.success_share.measured if row else None) for row in rows]
        cells += [usd(row.usd_per_million if row else None) for row in rows]
        lines.append(["-" if cell == ABSENT else cell for cell in cells])
    return table(header, lines)


def _tok_s(row: Row | None) -> str:
    return count(row.output_tok_s.measured if row else None)


def _ttft(row: Row | None) -> str:
    return seconds(row.ttft_p95_s.measured if row else None)


def _layouts(report: Report) -> str:
    rows = [
        (
            row.system,
            row.layout,
            "published" if row.comparison is None else _letter(row.comparison),
            count(row.tok_s),
            plain(row.rate_rps) if row.rate_rps is not None else "-",
            usd(row.usd_per_million) if row.usd_per_million is not None else "-",
        )
        for row in report.layouts
    ]
    return table(("system", "layout", "whose", "output tok/s per node", "at rps", "$/M"), rows)
