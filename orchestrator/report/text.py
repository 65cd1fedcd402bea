"""Compared results as plain text for a terminal. Pure."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from orchestrator.bench import metrics
from orchestrator.core.console import table
from orchestrator.report.compare import Comparison
from orchestrator.report.document import Report
from orchestrator.report.headline import verdict, without_verdict
from orchestrator.report.side_by_side import ConfigurationGroup, SideRow, change_text, estimate_text

_WIDEST: Final = 40  # characters of a value in the table of differences


def comparison_text(report: Report) -> str:
    """Return the verdict, the configurations, their differences, a table for each metric, and the eval results."""
    published = report.published
    parts = [f"published: {published.title} ({published.source}, {published.date})", ""] if published else []
    for judge in (verdict, without_verdict):
        parts += [f"{sentence}\n" for sentence in judge(report.side_by_side, report.comparisons)]
    parts += [_header(index, side, report) for index, side in enumerate(report.side_by_side.groups)]
    parts += ["", *_differences(report), *_metrics(report)]
    parts += [f"{report.side_by_side.noise}\n"] if report.side_by_side.noise else []
    parts += [_layouts(report)] if report.layouts else []
    parts += [
        f"{row.name}: {row.metric} {row.without_feature:.4g} without, {row.with_feature:.4g} with, "
        f"{row.ratio:.2f} times ({row.claim})"
        for row in report.ablations
    ]
    measured = [row for row in report.evals if row.measured and row.judgment is not None]
    parts += [f"{row.title}: {row.judgment.sentence}" for row in measured if row.judgment is not None]
    return "\n".join(parts).rstrip("\n") + "\n"


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"#{index + 1}"


def _header(index: int, side: ConfigurationGroup, report: Report) -> str:
    lines = [f"{_letter(index)}: {side.label}, {side.workload}"]
    members = [report.comparisons[run] for run in side.runs]
    if not side.comparable:
        lines.append("   NOT COMPARABLE:")
    reasons = (r for member in members for r in member.reasons)
    lines += dict.fromkeys(f"   - {r.kind}{f' at {r.point}' if r.point else ''}: {r.detail}" for r in reasons)
    lines += dict.fromkeys(f"   {caveat}" for member in members for caveat in member.caveats)
    knees = [text for member in members if (text := _knee(member))]
    if len({*knees}) > 1:
        knees = [f"{text} ({member.name})" for member in members if (text := _knee(member))]
    lines += dict.fromkeys(f"   {text}" for text in knees)
    return "\n".join(lines)


def _knee(comparison: Comparison) -> str:
    """Return the speed of a single stream, or the knee; "" if a result has neither."""
    if (single := comparison.single_stream_tok_s) is not None:
        measured, published = metrics.OUTPUT.text(single.measured), metrics.OUTPUT.text(single.published)
        return f"{measured} tok/s in a single stream" + (
            f", {published} published" if single.published is not None else ""
        )
    if comparison.knee_rps is None:
        return ""
    return f"knee: {metrics.knee_text(comparison.result)}"


def _metrics(report: Report) -> Iterator[str]:
    """Yield a table for each measured metric, with a row per load, a column per configuration, and the changes."""
    for key, rows in groupby(report.side_by_side.rows, key=lambda row: row.metric):
        yield _metric_table(key, tuple(rows), report) + "\n"


def _metric_table(key: str, rows: tuple[SideRow, ...], report: Report) -> str:
    """Return the table of one metric by load, with a column of published values if a result has some."""
    metric, sides = metrics.BY_KEY[key], range(len(report.side_by_side.groups))
    published = {
        row.load: row.of(metric).published
        for comparison in report.comparisons
        for row in comparison.rows
        if row.of(metric).published is not None
    }
    changed = [column for column in sides if any(row.changes[column] is not None for row in rows)]
    header = (
        metric.title,
        *(["published"] if published else []),
        *map(_letter, sides),
        *(f"{_letter(column)} against A" for column in changed),
    )
    lines = [
        (
            row.load,
            *([metric.text(published.get(row.load), "-")] if published else []),
            *(estimate_text(metric, estimate) for estimate in row.estimates),
            *("-" if (difference := row.changes[column]) is None else change_text(difference) for column in changed),
        )
        for row in rows
    ]
    return table(header, lines)


def _differences(report: Report) -> Iterator[str]:
    firsts = [side.runs[0] for side in report.side_by_side.groups]
    rows = [(difference.key, *(difference.values[first] for first in firsts)) for difference in report.differences]
    differing = [row for row in rows if len({*row[1:]}) > 1]
    if differing:
        header = ("differs", *(_letter(column) for column in range(len(firsts))))
        yield table(header, [(key, *map(_short, values)) for key, *values in differing]) + "\n"


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else f"{value[: _WIDEST - 1]}…"


def _layouts(report: Report) -> str:
    rows = report.layouts
    letters = {run: _letter(at) for at, side in enumerate(report.side_by_side.groups) for run in side.runs}
    columns = metrics.metrics_for(metrics.DisplayIn.LAYOUT)
    measured = [metric for metric in columns if any(row.metrics[metric.key] is not None for row in rows)]
    lines = [
        (
            row.system,
            row.layout,
            "published" if row.comparison is None else letters[row.comparison],
            metrics.count(row.tok_s),
            metrics.plain(row.rate_rps) if row.rate_rps is not None else "-",
            *(metric.text(row.metrics[metric.key], "-") for metric in measured),
        )
        for row in rows
    ]
    header = ("system", "layout", "source", metrics.OUTPUT.title, "at rps", *(metric.title for metric in measured))
    return table(header, lines)
