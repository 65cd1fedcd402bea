"""Reports: what was measured beside what was published, as HTML, Markdown and JSON.

::

    results (bench) + published (profiles/published) ──compare──▶ Report ──render──▶ report.html  report.md  report.json
"""

from orchestrator.report.compare import foreign
from orchestrator.report.configuration import configuration_of, started_with
from orchestrator.report.document import Details, Report, build_report
from orchestrator.report.economics import NodePower
from orchestrator.report.over_time import point_to_draw
from orchestrator.report.published import (
    Ablation,
    PriceBook,
    Prices,
    Published,
    PublishedEval,
    ReproduceRun,
    load_all_published,
    load_published,
    of_kind,
    parse_prices,
    published_workloads,
    split_currency,
)
from orchestrator.report.quality import beside_published
from orchestrator.report.render import render_html, render_json, render_markdown
from orchestrator.report.show import comparison_text
from orchestrator.report.sides import ONE_RUN_EACH, change_text, changes_between, estimate_text
from orchestrator.report.sweep import (
    SweepReport,
    SweepRow,
    measured_points,
    render_sweep_html,
    render_sweep_json,
    render_sweep_markdown,
)

__all__ = [
    "ONE_RUN_EACH",
    "Ablation",
    "Details",
    "NodePower",
    "PriceBook",
    "Prices",
    "Published",
    "PublishedEval",
    "Report",
    "ReproduceRun",
    "SweepReport",
    "SweepRow",
    "beside_published",
    "build_report",
    "change_text",
    "changes_between",
    "comparison_text",
    "configuration_of",
    "estimate_text",
    "foreign",
    "load_all_published",
    "load_published",
    "measured_points",
    "of_kind",
    "parse_prices",
    "point_to_draw",
    "published_workloads",
    "render_html",
    "render_json",
    "render_markdown",
    "render_sweep_html",
    "render_sweep_json",
    "render_sweep_markdown",
    "split_currency",
    "started_with",
]
