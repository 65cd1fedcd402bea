"""Which plots a report shows: its rows as series. Pure."""

from collections.abc import Callable

from orchestrator.report.compare import Comparison
from orchestrator.report.document import LayoutRow, Report
from orchestrator.report.plot import Bar, Chart, Limit, Line
from orchestrator.report.published import PublishedRate
from orchestrator.results import Figure, figures

RATE = "offered rate, requests per second"


def line_charts(report: Report) -> tuple[Chart, ...]:
    """TTFT, throughput, cost and energy, each against the offered rate."""
    limits = sorted({limit for each in report.comparisons if (limit := each.ttft_limit_s) is not None})
    return (
        Chart(
            id="ttft-p95",
            title="Time to first token, p95",
            x_label=RATE,
            y_label="seconds, logarithmic",
            lines=_lines(report, lambda line: line.ttft_p95_s, figures.TTFT_P95),
            limits=tuple(Limit(label=f"limit {limit:g} s", value=limit) for limit in limits),
            log=True,
        ),
        Chart(
            id="ttft-p50",
            title="Time to first token, p50",
            x_label=RATE,
            y_label="seconds, logarithmic",
            lines=_lines(report, lambda line: line.ttft_p50_s, figures.TTFT_P50),
            log=True,
        ),
        Chart(
            id="throughput",
            title="Output throughput of the node",
            x_label=RATE,
            y_label="output tokens per second",
            lines=_lines(report, lambda line: line.output_tok_s, figures.OUTPUT),
        ),
        Chart(
            id="cost",
            title="Cost of a million output tokens",
            x_label=RATE,
            y_label="US dollars",
            lines=_lines(report, _published_cost(report), figures.USD),
        ),
        Chart(
            id="energy",
            title="Energy of an output token",
            x_label=RATE,
            y_label="joules",
            lines=_lines(report, lambda _: None, figures.JOULES),
        ),
    )


def layout_bars(report: Report) -> tuple[Bar, ...]:
    """Best throughput by system and layout, published in grey, measured in the colour of its result."""
    return tuple(_bar(row) for row in report.layouts)


def _bar(row: LayoutRow) -> Bar:
    at = f" at {row.rate_rps:g} rps" if row.rate_rps is not None else ""
    who = "published" if row.comparison is None else "measured"
    mark = "" if row.comparable else ", not comparable"
    layout = "" if row.layout == "not published" else f", {row.layout}"
    return Bar(
        label=f"{row.system}{layout}{at} ({who}{mark})",
        value=row.tok_s,
        text=f"{row.tok_s:,.0f}",
        colour=row.comparison,
    )


def _lines(report: Report, published: Callable[[PublishedRate], float | None], measured: Figure) -> tuple[Line, ...]:
    """The published series and one a result; where none measured the published workload, those of other workloads."""
    known = report.published
    same = [known and each.result.run.workload_name == known.workload.name for each in report.comparisons]
    rates = known.rates if known and any(same) else ()
    table = tuple((line.rate_rps, figure) for line in rates if (figure := published(line)) is not None)
    series = [Line(label="published", points=table, colour=None)]
    for index, comparison in enumerate(report.comparisons):
        if any(same) and not same[index]:
            continue
        points = tuple(
            (row.rate_rps, figure) for row in comparison.rows if (figure := row.of(measured).measured) is not None
        )
        series.append(Line(label=_short(comparison, report), points=points, colour=index))
    return tuple(line for line in series if line.points)


def _short(comparison: Comparison, report: Report) -> str:
    """The layout, with the GPU where several systems stand in one report, and a dagger where it is not comparable."""
    systems = {other.system for other in report.comparisons}
    gpu = f" {comparison.system.rpartition('×')[2]}" if len(systems) > 1 else ""
    return f"{comparison.name}{gpu}{'' if comparison.comparable else ' †'}"


def _published_cost(report: Report) -> Callable[[PublishedRate], float | None]:
    """What the published throughput costs at the hourly price that the published layouts stand at."""
    hourly = report.published_usd_per_hour
    return lambda line: figures.usd_per_million_tokens(hourly, line.output_tok_s)
