"""The report of a sweep: the trials, the Pareto plot and the importance of each setting. Pure."""

import json
from dataclasses import asdict, dataclass

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult
from orchestrator.core.console import table
from orchestrator.core.text import printable, printable_json
from orchestrator.experiments.sweep.search import SweepTrial
from orchestrator.report.plot import Chart, Line, line_chart
from orchestrator.report.render import environment

_OWN, _BEST, _ALL, _FRONT = "baseline", "best", "all", "front"


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One trial in the table of trials."""

    trial: SweepTrial
    settings: tuple[str, ...]  # one value per parameter
    value: str
    comparability_issues: tuple[str, ...]  # comparability issues of its result
    best: bool


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """The data of a sweep report."""

    title: str
    headline: tuple[str, ...]
    parameters: tuple[str, ...]
    values: str  # header of the column of values
    rows: tuple[SweepRow, ...]
    importances: dict[str, float]
    points: tuple[tuple[int, float, float], ...]  # (trial, tok/s per user, output tok/s) of each measured rate
    notes: tuple[str, ...]
    command: str


def measured_points(trial: SweepTrial, result: BenchResult) -> tuple[tuple[int, float, float], ...]:
    """Return the points of a trial in the Pareto plot."""
    pairs = [(metrics.PER_USER.value_of(point), metrics.OUTPUT.value_of(point)) for point in result.points]
    return tuple((trial.number, user, node) for user, node in pairs if user is not None and node is not None)


def pareto_front(points: tuple[tuple[int, float, float], ...]) -> tuple[tuple[int, float, float], ...]:
    """Return the Pareto-optimal points, by increasing speed per user."""
    optimal: list[tuple[int, float, float]] = []
    for point in sorted(points, key=lambda item: (-item[1], -item[2])):
        if not optimal or point[2] > optimal[-1][2]:
            optimal.append(point)
    return tuple(reversed(optimal))


def pareto_chart(report: SweepReport) -> Chart:
    """Return the plot of throughput against speed per user: all points, the front, the original profile, the best."""
    baselines = {row.trial.number for row in report.rows if row.trial.is_baseline}
    best = {row.trial.number for row in report.rows if row.best}
    series = (
        (_ALL, report.points, None, "dots"),
        (_FRONT, pareto_front(report.points), 2, "line"),
        (_OWN, tuple(point for point in report.points if point[0] in baselines), 1, "dots"),
        (_BEST, tuple(point for point in report.points if point[0] in best), 0, "dots"),
    )
    lines = tuple(
        Line(
            label=label,
            points=tuple((user, node) for _, user, node in points),
            color=color,
            style="line" if style == "line" else "dots",
            tags=tuple(str(number) for number, _, _ in points) if label == _FRONT else (),
        )
        for label, points, color, style in series
        if points
    )
    return Chart(
        id="pareto",
        title="Throughput and interactivity",
        x_label="tok/s per user",
        y_label="output tok/s per node",
        lines=lines,
        description="Every rate of every trial; each label starts with the number of the trial.",
    )


def render_sweep_html(report: SweepReport) -> str:
    """Render a sweep report as one self-contained HTML page."""
    chart = pareto_chart(report)
    drawing = line_chart(chart) if chart.lines else None
    template = environment().get_template("sweep.html.j2")
    with_reason = [row for row in report.rows if row.trial.reason]
    return printable(template.render(report=report, chart=chart, drawing=drawing, telling=with_reason))


def sweep_text(report: SweepReport) -> str:
    """Return a sweep report as plain text for a terminal."""
    rows = [
        (
            f"{row.trial.number}{', baseline' if row.trial.is_baseline else ''}{', best' if row.best else ''}",
            *row.settings,
            row.value or metrics.NOT_MEASURED,
            "; ".join((row.trial.outcome, *row.comparability_issues)),
            metrics.count(row.trial.seconds),
        )
        for row in report.rows
    ]
    trials = table(("trial", *report.parameters, report.values, "outcome", "seconds"), rows)
    reasons = [
        f"trial {row.trial.number} {row.trial.outcome}: {row.trial.reason}" for row in report.rows if row.trial.reason
    ]
    weights = [f"importance of `{key}`: {metrics.share(share)}" for key, share in report.importances.items()]
    return printable("\n".join([*report.headline, "", trials, "", *reasons, *weights, *report.notes]))


def render_sweep_json(report: SweepReport) -> str:
    """Render a sweep report as JSON."""
    return printable_json(json.dumps(asdict(report), indent=2, ensure_ascii=False)) + "\n"
