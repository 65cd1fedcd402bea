"""HTML, terminal and JSON renderings of a report."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from measured_samples import b200, marked, single_stream, tp4dp2, tp8

from orchestrator.bench import metrics
from orchestrator.bench.metrics import result_text
from orchestrator.bench.published import PriceBook, Prices, all_published, load_published
from orchestrator.bench.result import BenchResult, IssueKind
from orchestrator.evals.eval_result import AnsweredQuestion, EvalResult
from orchestrator.report.charts import line_charts
from orchestrator.report.document import Report, build_report
from orchestrator.report.plot import Chart
from orchestrator.report.render import render_html, render_json
from orchestrator.report.text import comparison_text


def report(*results: BenchResult, evals: tuple[tuple[EvalResult | None, EvalResult], ...] = ()) -> Report:
    book = PriceBook(user_prices={}, published=all_published(Prices))
    return build_report(
        results,
        published=load_published("wafer-glm52"),
        prices=book,
        evals=evals,
    )


def chart(built: Report, name: str) -> Chart:
    return next(chart for chart in line_charts(built) if chart.id == name)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action", "poster"}]


def test_html_loads_no_resources_and_has_no_scripts() -> None:
    page = render_html(report(tp4dp2()))
    links = _Links()
    links.feed(page)
    assert links.links == ["data:,"]
    assert "script" not in links.tags
    assert "@import" not in page
    assert "url(" not in page


def test_rendering_is_deterministic() -> None:
    assert render_html(report(tp4dp2(), tp8())) == render_html(report(tp4dp2(), tp8()))


@pytest.mark.parametrize("kind", list(IssueKind))
def test_every_comparability_issue_is_prominent_in_every_format(kind: IssueKind) -> None:
    built = report(marked(tp4dp2(), kind))
    assert 'role="alert"><strong>Not comparable' in render_html(built)
    assert "TP4×DP2 †</text>" in render_html(built)  # in the plots too
    assert "NOT COMPARABLE" in comparison_text(built)
    assert json.loads(render_json(built))["comparisons"][0]["reasons"][0]["kind"] == kind.value


def test_headline_judges_only_comparable_results() -> None:
    assert report(tp4dp2(), marked(tp8(), IssueKind.KERNEL_MISS)).headline == (
        "No verdict on TP8 and TP4×DP2: TP8 is NOT COMPARABLE (kernel-miss).",
        "1 of 2 results must not be compared with the publication.",
        "TP4×DP2 on 8×MI355X: 2.4 rps at the knee, published 2.4: within tolerance.",
    )


def test_comparable_result_has_no_alert() -> None:
    built = report(tp4dp2())
    assert "alert" not in render_html(built)
    assert "†" not in render_html(built)
    assert "NOT COMPARABLE" not in comparison_text(built)


def test_missing_metrics_read_not_measured() -> None:
    result = tp4dp2()
    bare = replace(result, points=(replace(result.points[0], window=None, energy=None, latency=None),), knee_rps=None)
    page = render_html(report(bare))
    assert "no measured data" in page  # the plot of energy
    assert '<td><span class="absent">not measured</span><small>449</small>' in page
    assert '<td><span class="absent">not measured</span><small>0.60</small>' in page
    row = json.loads(render_json(report(bare)))["comparisons"][0]["rows"][0]["metrics"]
    assert "measured" not in row["output_tok_s"]
    assert row["joules_per_output_token"] == {"agreement": metrics.NOT_MEASURED, "note": ""}


def test_every_metric_is_in_every_format() -> None:
    built = report(tp4dp2())
    terminal, page, data = comparison_text(built), render_html(built), render_json(built)
    row = json.loads(data)["comparisons"][0]["rows"][0]
    for metric in metrics.metrics_for(metrics.DisplayIn.COMPARE):
        assert metric.if_measured or f"\n{metric.title}  " in terminal
    for metric in metrics.metrics_for(metrics.DisplayIn.RATE | metrics.DisplayIn.WAIT):
        if metric.if_measured:
            continue
        assert f"{metric.name[1:]}{f'<small>{metric.unit}</small>' if metric.unit else ''}</th>" in page
        assert "measured" in row["metrics"][metric.key]
    for metric in metrics.metrics_for(metrics.DisplayIn.LAYOUT):
        assert f"  {metric.title}" in terminal.split("source")[1]
    priced = tuple(replace(point, usd_per_million_output_tokens=1.25) for point in tp4dp2().points)
    measured = result_text(replace(tp4dp2(), points=priced))
    always = [metric for metric in metrics.metrics_for(metrics.DisplayIn.BENCH) if not metric.if_measured]
    assert all(f"  {metric.name}" in measured for metric in always)


def test_tokens_per_second_per_watt_are_shown() -> None:
    """The point at 0.5 rps took 13.1 J per token: 0.0763 tok/s per watt."""
    built = report(tp4dp2())
    assert re.search(r"output tok/s per watt +A\n0.5 rps +0.0763", comparison_text(built))
    assert re.search(r"<td>13.1\s*</td>\s*<td>0.0763\s*</td>", render_html(built))
    assert re.search(r"\n0.5 .* 13.1 +0.0763 +yes", result_text(tp4dp2()))


def test_published_curve_is_omitted_for_another_workload() -> None:
    result = tp8()
    other = replace(result, run=replace(result.run, workload_name="smoke-tiny"))
    assert [line.label for line in chart(report(other), "ttft-p95").lines] == ["TP8 †"]
    assert [line.label for line in chart(report(other, tp4dp2()), "ttft-p95").lines] == ["published", "TP4×DP2"]


def test_layout_table_lists_measured_and_published_systems() -> None:
    rows = report(tp8(), tp4dp2(), b200()).layouts
    assert [(row.system, row.layout, row.comparison) for row in rows] == [
        ("8×MI355X", "TP8", None),
        ("8×MI355X", "TP8", 0),
        ("8×MI355X", "TP4×DP2", None),
        ("8×MI355X", "TP4×DP2, tuned fp4 MoE", None),
        ("8×MI355X", "TP4×DP2", 1),
        ("8×B200", "not published", None),
        ("8×B200", "TP8", 2),
    ]
    assert rows[4].change == pytest.approx(2364 / 2626 - 1)


def test_runs_of_same_layout_have_distinct_names() -> None:
    assert [comparison.name for comparison in report(tp8(), tp8(), single_stream()).comparisons] == [
        "TP8",
        "TP8 (2)",
        "TP8",
    ]


def test_result_text_cannot_inject_html() -> None:
    result = tp4dp2()
    hostile = replace(result, run=replace(result.run, command="deploy bench <script>alert(1)</script>"))
    page = render_html(report(hostile))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_provenance_section_contains_reproduction_facts() -> None:
    page = render_html(report(tp4dp2()))
    tail = page[page.index('id="provenance"') :]
    for fact in (
        "deploy bench mi355x-tp4dp2",
        "3f9a3f9a",
        "sha256:77ab",
        "glm-nextn-exclude",
        "missed",
        "gfx950",
        "20260701",
    ):
        assert fact in tail


def test_published_evaluations_are_not_significant() -> None:
    rows = {row.title: row for row in report(tp4dp2()).evals}
    gsm8k = rows["GSM8K, 5-shot, greedy"].judgment
    assert gsm8k is not None
    assert not gsm8k.significant
    assert rows["tau2, macro average"].judgment is None
    assert render_html(report(tp4dp2())).count("not significant at this sample size") == 2


def test_published_score_is_shown_with_its_error() -> None:
    labels = {row.title: (row.baseline_label, row.candidate_label) for row in report(tp4dp2()).evals}
    assert labels["GSM8K, 5-shot, greedy"] == ("FP8, ± 0.013", "MXFP4, ± 0.014")
    assert labels["tau2, macro average"] == ("FP8", "MXFP4")


def test_evaluation_without_baseline_is_compared_with_published_scores() -> None:
    items = tuple(AnsweredQuestion(id=str(index), correct=index % 20 != 0) for index in range(1319))
    outcome = EvalResult(
        schema_version=3, suite="gsm8k", task="gsm8k", metric="exact_match", model="glm-5.2", harness="lm-eval 0.4.13",
        command="deploy eval", answered=items,
    )  # fmt: skip
    rows = report(tp4dp2(), evals=((None, outcome),)).evals[-2:]
    assert [row.baseline_label for row in rows] == ["FP8, published", "MXFP4, published"]
    measures = "FP8 not measured: `deploy reproduce wafer-glm52 --ablation baseline-checkpoint`"
    assert [measures in row.caveat for row in rows] == [True, False]
    for row in rows:
        assert row.measured
        assert row.judgment is not None
        assert row.judgment.answers == 200


def test_tau2_result_has_no_verdict_against_published_scores() -> None:
    outcome = EvalResult(
        schema_version=3, suite="tau2", task="airline", metric="pass^1", model="glm-5.2", harness="tau2-bench a2c0247",
        command="deploy eval", answered=(AnsweredQuestion(id="1", correct=True, seed=0, group="airline"),),
    )  # fmt: skip
    rows = report(tp4dp2(), evals=((None, outcome),)).evals[-2:]
    assert [(row.baseline, row.judgment) for row in rows] == [(0.819, None), (0.834, None)]
    assert rows[0].caveat == "no sample size was published, tau2-bench a2c0247"


@pytest.mark.parametrize(("value", "text"), [(1.0, "100 %"), (0.9996, "99.9 %"), (0.598, "59.8 %")])
def test_share_rounds_to_100_only_when_exact(value: float, text: str) -> None:
    assert metrics.share(value) == text


def test_short_times_keep_their_digits() -> None:
    assert (metrics.seconds(0.034), metrics.seconds(0.81), metrics.seconds(14.8)) == ("0.034", "0.81", "14.80")


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colors (WCAG 2.2, relative luminance)."""

    def luminance(color: str) -> float:
        parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_colors_meet_contrast_requirements() -> None:
    """WCAG 2.2, 1.4.3 requires 4.5 to 1, in the light and in the dark page."""
    style = render_html(report(tp4dp2())).partition("<style>")[2]
    palettes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{([^}]*)\}", style)
    ]
    light, dark = palettes[0], palettes[1]
    for colors in (light, dark):
        texts = [name for name in colors if name in {"ink", "soft", "warning", "good", "published"} or name[0] == "c"]
        assert len(texts) == 11
        assert {name: ratio for name in texts if (ratio := _contrast(colors[name], colors["paper"])) < 4.5} == {}
        assert _contrast(colors["warning"], colors["warning-wash"]) >= 4.5
