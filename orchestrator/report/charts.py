"""The plots of a report. Pure."""

from dataclasses import replace
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.metrics import ReportMetric
from orchestrator.report.compare import Comparison, RateRow
from orchestrator.report.document import Report
from orchestrator.report.plot import Chart, Limit, Line

RATE: Final = "offered rate, requests per second"
_BY_RATE: Final = (  # id, title, unit, metric, description
    (
        "ttft-p95",
        "Time to first token, p95",
        "seconds, logarithmic",
        metrics.TTFT_P95,
        "95 % of the requests get their first token within this time.",
    ),
    (
        "tpot",
        "Time per output token, p50",
        "milliseconds",
        metrics.TPOT_P50,
        "Half of the responses need at most this time per token.",
    ),
    (
        "throughput",
        "Output throughput of the node",
        "output tokens per second",
        metrics.OUTPUT,
        "A full server emits no more tokens at a higher rate.",
    ),
    ("energy", "Energy of an output token", "joules", metrics.JOULES, "From the energy counters of the GPUs."),
)
_MAX_NAME: Final = 14  # characters of a name in a plot; the legend has the full name


def line_charts(report: Report) -> tuple[Chart, ...]:
    """Return the plots: throughput against speed per user, then four metrics against the offered rate."""
    limits = sorted({limit for comparison in report.comparisons if (limit := comparison.ttft_limit_s) is not None})
    ttft, *other_charts = (
        Chart(id=id_, title=title, x_label=RATE, y_label=unit, lines=_lines(report, metric), description=description)
        for id_, title, unit, metric, description in _BY_RATE
    )
    drawn = tuple(Limit(label=f"limit {limit:g} s", value=limit) for limit in limits)
    return (_frontier(report), replace(ttft, limits=drawn, log=True), *other_charts)


def _frontier(report: Report) -> Chart:
    """Return the plot of throughput per GPU against speed per user; per node if a result has no GPU count."""
    plotted = _plotted_results(report)
    rows = [row for item, _ in plotted for row in item.rows]
    output = [row for row in rows if row.of(metrics.OUTPUT).measured is not None]
    per_gpu = all(row.of(metrics.OUTPUT_PER_GPU).measured is not None for row in output)
    metric, unit = (metrics.OUTPUT_PER_GPU, "a GPU") if per_gpu else (metrics.OUTPUT, "the node")
    lines = tuple(
        Line(label=_short(comparison, report), points=points, color=index, tags=tags)
        for comparison, index in plotted
        for points, tags in [_spots(comparison.rows, metric)]
        if points
    )
    return Chart(
        id="frontier",
        title="Throughput against latency",
        x_label="output tokens per second of one user (1 / median TPOT)",
        y_label=f"output tokens per second of {unit}",
        lines=lines,
        description=f"Each point is one load. Higher: more throughput of {unit}; further right: faster for each user.",
    )


def _spots(rows: tuple[RateRow, ...], output: ReportMetric) -> tuple[tuple[tuple[float, float], ...], tuple[str, ...]]:
    spots = [
        ((user, tok_s), row.load)
        for row in rows
        if (user := row.of(metrics.PER_USER).measured) and (tok_s := row.of(output).measured) is not None
    ]
    return tuple(spot for spot, _ in spots), tuple(load for _, load in spots)


def _lines(report: Report, measured: ReportMetric) -> tuple[Line, ...]:
    """Return the published series, if a result has its workload, and one series per drawn result."""
    plotted = _plotted_results(report)
    rates = (
        report.published.rates if report.published and any(_is_published(item, report) for item, _ in plotted) else ()
    )
    published = ((line.rate_rps, line.model_dump().get(measured.key)) for line in rates)
    table = tuple((rate, value) for rate, value in published if value is not None)
    series = [Line(label="published", points=table, color=None)]
    for comparison, index in plotted:
        points = tuple(
            (row.rate_rps, value)
            for row in comparison.rows
            if row.rate_rps is not None and (value := row.of(measured).measured) is not None
        )
        series.append(Line(label=_short(comparison, report), points=points, color=index))
    return tuple(line for line in series if line.points)


def _plotted_results(report: Report) -> list[tuple[Comparison, int]]:
    """Return results with their index; only those of the published workload, if there are any."""
    every = [(comparison, index) for index, comparison in enumerate(report.comparisons)]
    return [item for item in every if _is_published(item[0], report)] or every


def _is_published(comparison: Comparison, report: Report) -> bool:
    published = report.published
    return published is not None and comparison.result.run.workload_name == published.workload.name


def _short(comparison: Comparison, report: Report) -> str:
    """Return the name of a result, with the GPU if systems differ, and a dagger if it is not comparable."""
    systems = {other.system for other in report.comparisons}
    add_gpu = len(systems) > 1 and comparison.name.startswith(comparison.layout)
    gpu = f" {comparison.system.rpartition('×')[2]}" if add_gpu else ""
    name = comparison.name if len(comparison.name) <= _MAX_NAME else f"{comparison.name[: _MAX_NAME - 1]}…"
    return f"{name}{gpu}{'' if comparison.comparable else ' †'}"
