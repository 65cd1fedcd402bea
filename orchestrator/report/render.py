"""A report as HTML, Markdown and JSON. Pure: the same report gives the same bytes.

The HTML stands alone: style and plots are inline, nothing is fetched and no script runs.
"""

import json
import re
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from pydantic import TypeAdapter

from orchestrator.core.text import printable_json
from orchestrator.report.charts import layout_bars, line_charts
from orchestrator.report.compare import Agreement, ComparedFigure, Comparison
from orchestrator.report.document import Report
from orchestrator.report.plot import bar_chart, line_chart
from orchestrator.results import Figure, figures

# Wherever it stands; and what makes a heading, a list or a line of a text at whose beginning it stands.
_MARKUP: Final = re.compile(r"[\\`*\[\]<>&|~]|(?<!\w)_|_(?!\w)|^(?:#{1,6}|[-+=]+)(?=\s|$)|(?<=^\d)[.)](?=\s)")
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def render_html(report: Report) -> str:
    """One self-contained page."""
    template = _environment().get_template("report.html.j2")
    shown = [chart for chart in line_charts(report) if chart.lines or report.published]
    charts = [(chart, line_chart(chart) if chart.lines else None) for chart in shown]
    bars = bar_chart("layouts", "Best output throughput by layout", layout_bars(report)) if report.layouts else ""
    return template.render(report=report, charts=charts, bars=bars, **_columns(report))


def render_markdown(report: Report) -> str:
    """The same as Markdown."""
    environment = _environment()
    environment.finalize = escaped
    environment.filters["code"] = code
    return environment.get_template("report.md.j2").render(report=report, **_columns(report))


def _columns(report: Report) -> dict[str, list[Figure]]:
    """The figures of the two tables; without anything published those that no result has are left out."""
    rows = [row for comparison in report.comparisons for row in comparison.rows]
    known = {figure.key for figure in figures.BY_RATE if any(row.of(figure).measured is not None for row in rows)}
    return {
        "by_rate": [figure for figure in figures.BY_RATE if report.published or figure.key in known],
        "by_layout": [figure for figure in figures.BY_LAYOUT if report.published or figure.key in known],
    }


def render_json(report: Report) -> str:
    """The same as JSON; what was not measured is left out."""
    return printable_json(_REPORT.dump_json(report, indent=2, exclude_none=True).decode()) + "\n"


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
        "OUTPUT": figures.OUTPUT,
        "TTFT_P95": figures.TTFT_P95,
        "USD": figures.USD,
        "JOULES": figures.JOULES,
        "absent": figures.ABSENT,
        "plain": figures.plain,
        "sustained": {True: "yes", False: "no", None: figures.ABSENT},
    }
    environment.filters |= {
        "count": figures.count,
        "share": figures.share,
        "usd": figures.usd,
        "plain": figures.plain,
        "change": change,
        "pretty": pretty,
        "load": load,
        "cost": cost,
        "agreement_class": agreement_class,
        "signed": signed,
        "remarks": remarks,
    }
    return environment


def change(figure: ComparedFigure) -> str:
    """How far the measured figure lies from the published one."""
    return "" if figure.change is None else signed(figure.change)


def signed(value: float) -> str:
    """A relative change as a percentage with its sign."""
    return f"{value * 100:+.0f} %".replace("-", "−")


def remarks(comparison: Comparison) -> list[str]:
    """What has to be said of single rows: published figures that cannot be, and why a rate was not sustained."""
    found = []
    for row in comparison.rows:
        found += [f"{row.rate_rps:g} rps: {figure.note}" for figure in row.figures.values() if figure.note]
        verdict = "was not sustained" if row.sustained is False else "was not judged"
        found += [f"{row.rate_rps:g} rps {verdict}: {reason}" for reason in row.not_sustained_because]
        found += [f"{row.rate_rps:g} rps: {row.capped}"] if row.capped else []
    return found


def load(comparison: Comparison) -> str:
    """What was sent, from the result's own workload, as far as it says so."""
    workload = comparison.result.run.workload
    tokens_in, tokens_out, cached = (workload.get(key) for key in ("input_tokens", "output_tokens", "cached_share"))
    if not (isinstance(tokens_in, int) and isinstance(tokens_out, int)):
        return ""
    shared = (
        f", {figures.share(cached)} of each prompt shared with others" if isinstance(cached, float) and cached else ""
    )
    return f"{tokens_in:,} tokens in, {tokens_out:,} out{shared}"


def cost(value: float | None, unit: str) -> str:
    """A value of the table of costs: dollars, another currency that the unit names, or a plain ratio."""
    if value is None:
        return figures.ABSENT
    if not unit:
        return f"{value:.3g}"
    return figures.usd(value) if unit.startswith("USD") else f"{value:.2f}"


def agreement_class(agreement: Agreement) -> str:
    """The style class of what a figure says beside a published one."""
    styles = {Agreement.BETTER: "better", Agreement.WORSE: "worse", Agreement.NOT_COMPARABLE: "forbidden"}
    return styles.get(agreement, "")


def pretty(data: object) -> str:
    """A document of the provenance as indented JSON."""
    return printable_json(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, default=str))


def escaped(value: object) -> object:
    """A text of others as Markdown that shows it: on one line, no markup, no HTML, no link, no cell of a table."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return Markup(_MARKUP.sub(_escape, " ".join(value.split())))  # noqa: S704 - this is what makes it safe


def code(text: str) -> Markup:
    """Text as a span of code, between more backticks than it holds."""
    line = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if "`" in line else ""
    return Markup(f"{fence}{space}{line}{space}{fence}")  # noqa: S704 - nothing is read in a span of code


def _escape(found: re.Match[str]) -> str:
    return {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(found[0], f"\\{found[0]}")
