"""A report as HTML and JSON. Pure: the same report gives the same bytes.

The HTML is self-contained: style and plots are inline, without scripts or external resources.
"""

import json
from dataclasses import replace
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from orchestrator.bench import metrics
from orchestrator.bench.metrics import ReportMetric
from orchestrator.bench.result import ComparabilityIssue
from orchestrator.core.text import printable, printable_json
from orchestrator.core.validation import type_adapter
from orchestrator.report.charts import line_charts
from orchestrator.report.compare import UNKNOWN_LAYOUT, Agreement, ComparedMetric, Comparison, RateRow
from orchestrator.report.configuration import grouped, load
from orchestrator.report.document import Report
from orchestrator.report.plot import legend_symbol, line_chart
from orchestrator.report.side_by_side import change_text, estimate_text, signed


def render_html(report: Report) -> str:
    """Render a report as one self-contained HTML page."""
    template = environment().get_template("report.html.j2")
    charts_shown = (chart for chart in line_charts(report) if chart.lines or report.published)
    charts = [(chart, line_chart(chart) if chart.lines else None) for chart in charts_shown]
    return printable(template.render(report=report, charts=charts, **_template_context(report)))


def _template_context(report: Report) -> dict[str, object]:
    """Return template variables: the first run of each configuration, and the metrics of each table.

    Metrics without any measured value are omitted unless the report has published metrics.
    """
    rows = [row for comparison in report.comparisons for row in comparison.rows]
    measured_keys = {
        metric.key for metric in metrics.METRICS if any(row.of(metric).measured is not None for row in rows)
    }
    table_of = {
        "by_rate": metrics.DisplayIn.RATE,
        "by_wait": metrics.DisplayIn.WAIT,
        "by_layout": metrics.DisplayIn.LAYOUT,
        "cards": metrics.DisplayIn.CARD,
    }
    context: dict[str, object] = {
        name: [
            metric
            for metric in metrics.metrics_for(table)
            if (report.published and not metric.if_measured) or metric.key in measured_keys
        ]
        for name, table in table_of.items()
    }
    firsts = [side.runs[0] for side in report.side_by_side.groups]
    settings_differing = [
        replace(difference, values=tuple(difference.values[first] for first in firsts))
        for difference in report.differences
    ]
    important, collapsed = grouped([item for item in settings_differing if len({*item.values}) > 1])
    return {
        **context,
        "sides": [(side, report.comparisons[side.runs[0]], side.runs[0]) for side in report.side_by_side.groups],
        "important": important,
        "collapsed": collapsed,
        "unset": "not known"
        if any(comparison.result.run.provenance.plan is None for comparison in report.comparisons)
        else "not set",
    }


def render_json(report: Report) -> str:
    """Render a report as JSON, without None values."""
    return printable_json(type_adapter(Report).dump_json(report, indent=2, exclude_none=True).decode()) + "\n"


@cache
def environment() -> Environment:
    """Return the Jinja environment of HTML pages, which escapes text."""
    environment = Environment(
        loader=PackageLoader("orchestrator.report"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "OUTPUT": metrics.OUTPUT,
        "absent": metrics.NOT_MEASURED,
        "plain": metrics.plain,
        "metric_by_key": metrics.BY_KEY,
        "legend_symbol": legend_symbol,
        "unknown_layout": UNKNOWN_LAYOUT,
        "sustained": {True: "yes", False: "no", None: "not judged"},
    }
    environment.filters |= {
        "count": metrics.count,
        "share": metrics.share,
        "plain": metrics.plain,
        "change": change,
        "pretty": pretty,
        "pairs": lambda rows: [(item.key, item.values) for item in rows],
        "of_sides": lambda facts, sides: [(fact.name, [fact.values[at] for _, _, at in sides]) for fact in facts],
        "load": load,
        "agreement_class": agreement_class,
        "signed": signed,
        "remarks": remarks,
        "card_note": card_note,
        "errors": errors,
        "known_in": known_in,
        "not_comparable": not_comparable,
        "change_text": change_text,
        "estimate_text": estimate_text,
    }
    return environment


def change(metric: ComparedMetric) -> str:
    """Format the change of the measured from the published value; "" if unknown."""
    return "" if metric.change is None else signed(metric.change)


def not_comparable(report: Report) -> list[tuple[list[str], tuple[ComparabilityIssue, ...]]]:
    """Return the results with comparability issues, grouped by equal issues."""
    labels_by_reasons: dict[tuple[ComparabilityIssue, ...], list[str]] = {}
    for comparison in report.comparisons:
        if comparison.reasons:
            labels_by_reasons.setdefault(comparison.reasons, []).append(comparison.label)
    return [(labels, reasons) for reasons, labels in labels_by_reasons.items()]


def known_in(columns: list[ReportMetric], comparison: Comparison, published: object) -> list[ReportMetric]:
    """Return the metrics with a measured value; all of them if the report has published metrics to compare with."""
    rows = comparison.rows
    return [column for column in columns if published or any(row.of(column).measured is not None for row in rows)]


def card_note(row: RateRow, metric: ReportMetric, comparison: Comparison) -> str:
    """Return the note below a metric at the top of the page: offered load, TTFT limit or price; else ""."""
    if metric is metrics.OUTPUT and row.load_tok_s is not None:
        return f"{metrics.count(row.load_tok_s)} is the offered load"
    if metric is metrics.TTFT_P95 and comparison.ttft_limit_s is not None:
        return f"limit {metrics.plain(comparison.ttft_limit_s)} s"
    if metric is metrics.USD:
        price = comparison.usd_per_gpu_hour
        return "price unknown" if price is None else f"{metrics.usd(price)} per GPU-hour"
    return ""


def errors(comparison: Comparison) -> list[tuple[str, dict[str, int], str]]:
    """Return the failures by kind: number at each load, and an example."""
    by_kind: dict[str, tuple[dict[str, int], str]] = {}
    for point in comparison.result.points:
        for failure in point.failures:
            counts, _ = by_kind.setdefault(failure.kind, ({}, failure.example))
            counts[point.label] = failure.count
    return [(kind, counts, example) for kind, (counts, example) in by_kind.items()]


def remarks(comparison: Comparison) -> list[str]:
    """Return the notes on single rows: implausible published values, and reasons for a rate that is not sustained."""
    texts = []
    for row in comparison.rows:
        texts += [f"{row.load}: {metric.note}" for metric in row.metrics.values() if metric.note]
        verdict = "was not sustained" if row.sustained is False else "was not judged"
        texts += [f"{row.load} {verdict}: {reason}" for reason in row.not_sustained_because]
    return texts


def agreement_class(agreement: Agreement) -> str:
    """Return the CSS class of a verdict."""
    styles = {Agreement.BETTER: "better", Agreement.WORSE: "worse", Agreement.NOT_COMPARABLE: "forbidden"}
    return styles.get(agreement, "")


def pretty(data: object) -> str:
    """Format a document of the provenance as indented JSON."""
    return printable_json(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, default=str))
