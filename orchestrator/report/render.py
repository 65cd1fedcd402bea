"""A report as HTML, Markdown and JSON. Pure: the same report gives the same bytes.

The HTML stands alone: style and plots are inline, nothing is fetched and no script runs.
"""

import json

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from pydantic import TypeAdapter

from orchestrator.report.charts import layout_bars, line_charts
from orchestrator.report.compare import Comparison, Figure, Verdict
from orchestrator.report.document import Report
from orchestrator.report.plot import bar_chart, line_chart

ABSENT = "not measured"
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def to_html(report: Report) -> str:
    """One self-contained page."""
    template = _environment().get_template("report.html.j2")
    charts = [(chart, line_chart(chart) if chart.lines else None) for chart in line_charts(report)]
    bars = bar_chart("layouts", "Best output throughput by layout", layout_bars(report))
    return template.render(report=report, charts=charts, bars=bars)


def to_markdown(report: Report) -> str:
    """The same as Markdown."""
    return _environment().get_template("report.md.j2").render(report=report)


def to_json(report: Report) -> str:
    """The same as JSON; what was not measured is left out."""
    return _REPORT.dump_json(report, indent=2, exclude_none=True).decode() + "\n"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("orchestrator.report"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "count_of": count,
        "seconds_of": seconds,
        "share_of": share,
        "usd_of": usd,
        "plain_of": plain,
    }
    environment.filters |= {
        "count": count,
        "seconds": seconds,
        "share": share,
        "usd": usd,
        "plain": plain,
        "change": change,
        "pretty": pretty,
        "loud": loud,
        "cell": cell,
        "signed": signed,
        "remarks": remarks,
    }
    return environment


def count(value: float | None) -> str:
    """A throughput: whole, thousands separated."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """Seconds to the hundredth, below a tenth of a second to the millisecond."""
    if value is None:
        return ABSENT
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def share(value: float | None) -> str:
    """A part of 1 as a percentage that only says 100 when it is."""
    if value is None:
        return ABSENT
    text = f"{value * 100:.1f}".removesuffix(".0")
    return f"{'99.9' if text == '100' and value < 1 else text} %"


def usd(value: float | None) -> str:
    """US dollars, to the cent."""
    return ABSENT if value is None else f"${value:,.2f}"


def plain(value: float | None) -> str:
    """Any other figure, three digits."""
    return ABSENT if value is None else f"{value:.3g}"


def change(figure: Figure) -> str:
    """How far the measured figure lies from the published one."""
    return "" if figure.change is None else signed(figure.change)


def signed(value: float) -> str:
    """A relative change as a percentage with its sign."""
    return f"{value * 100:+.0f} %".replace("-", "−")


def remarks(comparison: Comparison) -> list[str]:
    """What has to be said of single rows: published figures that cannot be, and why a rate was not sustained."""
    found = []
    for row in comparison.rows:
        if row.output_tok_s.note:
            found.append(f"{row.rate_rps:g} rps: {row.output_tok_s.note}")
        found += [f"{row.rate_rps:g} rps was not sustained: {reason}" for reason in row.not_sustained_because]
    return found


def loud(verdict: Verdict) -> str:
    """The style class of a verdict."""
    styles = {Verdict.BETTER: "better", Verdict.WORSE: "worse", Verdict.NOT_COMPARABLE: "forbidden"}
    return styles.get(verdict, "")


def pretty(data: object) -> str:
    """A document of the provenance as indented JSON."""
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, default=str)


def cell(text: object) -> str:
    """Text that can stand in a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")
