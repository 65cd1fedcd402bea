"""A report about the user's own server: its limits, and published results only for matching runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import marked, point, save, single_stream, tp4dp2, tp8

from orchestrator.bench.metrics import result_text
from orchestrator.bench.result import BenchResult, FailureCount, IssueKind
from orchestrator.core.errors import UsageError
from orchestrator.report.charts import line_charts
from orchestrator.report.document import Report
from orchestrator.report.render import render_html, render_json
from orchestrator.report.text import comparison_text
from orchestrator.report.write import make_report

WORKLOAD = {"input_tokens": 800, "output_tokens": 64, "cache_hit_rate": 0.5, "slo": {"ttft_p95_s": 1.0}}


def own(*rates: float, sustained: int | None = None) -> BenchResult:
    """Return a result of the user's own workload; the first `sustained` rates are sustained, by default all."""
    result = tp4dp2()
    sustained_rates = len(rates) if sustained is None else sustained
    points = tuple(point(rate, 0.2, 0.4, sustained=index < sustained_rates) for index, rate in enumerate(rates))
    run = replace(
        result.run,
        workload_name="owl-burst",
        workload=WORKLOAD,
        endpoint=replace(result.run.endpoint, served_model="owl"),
        provenance=replace(result.run.provenance, gpu="l40s", gpus=1, plan={"layout": {"tp": 1, "dp": 1}}),
    )
    return replace(result, run=run, points=points, knee_rps=rates[sustained_rates - 1] if sustained_rates else None)


def report_of(tmp_path: Path, *results: BenchResult, published: str | None = None) -> Report:
    for index, result in enumerate(results):
        save(result, tmp_path / str(index))
    files = [tmp_path / str(index) / "result.json" for index in range(len(results))]
    return make_report(files, published=published, prices=())


def texts(report: Report) -> tuple[str, str]:
    return comparison_text(report), render_html(report)


def test_report_describes_only_measured_server(tmp_path: Path) -> None:
    report = report_of(tmp_path, own(1.0, 2.0, 4.0, sustained=2))

    assert report.published is None
    assert report.title == "owl on 1×L40S"
    assert " ".join(report.headline) == (
        "TP1 on 1×L40S, owl-burst: sustains 2 requests a second; there 1,970 output tok/s per node, "
        "TTFT p95 0.40 s, with a limit of 1 s; one run, so the noise is unknown."
    )
    for text in (whole.partition("Provenance and reproduction")[0] for whole in texts(report)):
        assert not any(word in text for word in ("GLM-5.2", "MI355X", "wafer", "Published", "NOT COMPARABLE"))
    assert "800 tokens in, 64 out, 50 % of each prompt shared with others" in render_html(report)


def test_plot_limit_comes_from_workload_slo(tmp_path: Path) -> None:
    report = report_of(tmp_path, own(1.0))

    assert "sustains at least 1 request a second" in report.headline[0]
    assert [limit.value for chart in line_charts(report) for limit in chart.limits] == [1.0]
    assert "limit 1 s" in render_html(report)
    assert "limit 5 s" not in render_html(report)


@pytest.mark.parametrize(("sustained", "terminal"), [(3, "at least 4 rps"), (2, "2 rps")])
def test_unreached_knee_is_a_lower_bound(tmp_path: Path, sustained: int, terminal: str) -> None:
    result = own(1.0, 2.0, 4.0, sustained=sustained)
    report = report_of(tmp_path, result)
    terminal_text, page = texts(report)

    assert f"knee: {terminal}" in terminal_text
    assert f"knee: {terminal}" in result_text(result)
    assert ("at least 4 requests a second, the highest measured" in report.headline[0]) == (sustained == 3)
    assert ("≥ 4 rps" in page) == (sustained == 3)


def test_report_states_that_no_rate_is_sustained(tmp_path: Path) -> None:
    report = report_of(tmp_path, own(1.0, sustained=0))

    assert report.headline == ("TP1 on 1×L40S, owl-burst: no sustained rate found.",)
    assert "knee: none found" in result_text(own(1.0, sustained=0))
    assert all("owl-burst" in text for text in texts(report))


def test_rate_with_too_few_requests_is_not_judged(tmp_path: Path) -> None:
    result = own(1.0)
    few = replace(
        result.points[0],
        sustained=None,
        not_sustained_because=("14 of 24 requests counted, 20 needed: send at least 40",),
    )

    report = report_of(tmp_path, replace(result, points=(few,), knee_rps=None))
    terminal_text, page = texts(report)

    reason = "14 of 24 requests counted, 20 needed: send at least 40"
    assert f"1 rps was not judged: {reason}" in page
    assert report.headline == (f"TP1 on 1×L40S, owl-burst: not judged: {reason}.",)
    assert "knee: not judged at 1 rps" in terminal_text
    first = page.partition('<section id="ran">')[0]
    assert f'<span class="absent">not found</span><small>not judged: {reason}</small>' in first
    assert "knee: not judged at 1 rps; measure longer" in result_text(replace(result, points=(few,), knee_rps=None))


def test_changed_workload_matters_only_against_published_results(tmp_path: Path) -> None:
    changed = marked(own(1.0), IssueKind.CHANGED_WORKLOAD)
    assert "NOT COMPARABLE" not in comparison_text(report_of(tmp_path, changed))
    compared = report_of(tmp_path / "compared", changed, published="wafer-glm52")
    assert "changed-workload" in {reason.kind for reason in compared.comparisons[0].reasons}


def test_published_results_appear_only_for_matching_runs(tmp_path: Path) -> None:
    for name, result, publication in (
        ("same", tp4dp2(), "wafer-glm52"),
        ("marked", marked(tp8(), IssueKind.KERNEL_MISS), "wafer-glm52"),
        ("single", single_stream(), "wafer-glm52"),
        ("own", own(1.0), None),
    ):
        report = report_of(tmp_path / name, result)
        assert (report.published.name if report.published else None) == publication, name
    assert report_of(tmp_path / "none", tp4dp2(), published="none").published is None
    requested = report_of(tmp_path / "requested", own(1.0), published="wafer-glm52")
    assert requested.published is not None
    assert [reason.kind for reason in requested.comparisons[0].reasons] == ["another-workload", "another-hardware"]
    assert requested.title == "owl on 1×L40S"
    assert requested.headline[0] == "The result must not be compared with the publication."
    assert requested.headline[1].startswith("TP1 on 1×L40S, owl-burst: sustains at least 1 request a second")


def test_comparability_issues_are_prominent_without_published_results(tmp_path: Path) -> None:
    report = report_of(tmp_path, marked(own(1.0), IssueKind.SIMULATED_ACCEPTANCE))

    assert "NOT COMPARABLE" in comparison_text(report)
    assert "cannot be compared with other measurements" in render_html(report)


def test_simulated_and_real_acceptance_cannot_be_mixed(tmp_path: Path) -> None:
    simulated = marked(own(1.0), IssueKind.SIMULATED_ACCEPTANCE)
    report_of(tmp_path, simulated, simulated)
    with pytest.raises(UsageError, match="simulated acceptance") as caught:
        report_of(tmp_path, own(1.0), simulated)
    assert caught.value.location


def test_differences_between_runs_form_a_table(tmp_path: Path) -> None:
    one, two = own(1.0), own(1.0)
    plan = {"layout": {"tp": 1, "dp": 1}, "flags": [{"name": "mem-fraction-static", "values": ["0.85"]}]}
    two = replace(two, run=replace(two.run, provenance=replace(two.run.provenance, plan=plan)))
    report = report_of(tmp_path, one, two)

    assert [(difference.key, difference.values) for difference in report.differences] == [
        ("flags.mem-fraction-static", ("", "0.85"))
    ]
    terminal_text, page = texts(report)
    assert "flags.mem-fraction-static     0.85" in terminal_text
    assert '<th scope="row">flags.mem-fraction-static</th>' in page
    assert report_of(tmp_path / "same", one, one).differences == ()


def test_unmeasured_metrics_have_no_column_or_plot(tmp_path: Path) -> None:
    bare = own(1.0)
    report = report_of(tmp_path, replace(bare, run=replace(bare.run, price=None)))
    page = render_html(report)

    assert "<small>per output tok</small>" not in page
    assert "Energy of an output token" not in page
    assert "no measured data" not in page
    assert '<th scope="col">ITL p95<small>ms</small></th>' in page


def test_report_without_publication_is_valid_json(tmp_path: Path) -> None:
    assert "published" not in json.loads(render_json(report_of(tmp_path, own(1.0))))


def test_report_shows_every_percentile(tmp_path: Path) -> None:
    """TTFT 0.2 / 0.4 s, E2E 9.2 / 11.4 s, TPOT 9 / 11 ms at p50 / p95; p99 is 1.1 times p95 in these samples."""
    page = render_html(report_of(tmp_path, own(1.0)))

    expected = ("TTFT", "0.20", "0.40", "0.44"), ("TPOT", "9", "11", "12.1"), ("E2E", "9.20", "11.40", "12.54")
    for name, *values in expected:
        assert all(f'<th scope="col">{name} {percentile}<small>' in page for percentile in ("p50", "p95", "p99"))
        assert re.search(r"\s*</td>\s*".join(f"<td>{value}" for value in values), page)
    assert "<dt>Tok/s per user</dt><dd>111</dd>" in page


def test_summary_cards_exist_only_for_measured_values(tmp_path: Path) -> None:
    """Without drafts, energy and price no card shows `not measured`."""
    result = own(1.0)
    bare = replace(result.points[0], server=None, energy=None)
    page = render_html(report_of(tmp_path, replace(result, points=(bare,))))
    head = page[page.index('<dl class="key"') : page.index("</dl>")]

    assert [card.partition("</dt>")[0] for card in head.split("<dt>")[1:]] == [
        "Knee", "Output tok/s per node", "Tok/s per user", "TTFT p95", "E2E p95", "From cache"
    ]  # fmt: skip
    assert ">not measured<" not in page
    complete = render_html(
        report_of(tmp_path / "complete", replace(result, points=(point(1.0, 0.2, 0.4, joules=2.0),)))
    )
    assert "<dt>Accepted tokens a step</dt><dd>3.4</dd>" in complete
    assert "<dt>J per output tok</dt><dd>2</dd>" in complete


def test_frontier_plots_throughput_against_user_speed(tmp_path: Path) -> None:
    chart = line_charts(report_of(tmp_path, own(1.0, 2.0)))[0]

    assert (chart.id, chart.y_label) == ("frontier", "output tokens per second of a GPU")
    assert [line.points for line in chart.lines] == [
        (pytest.approx((1000 / 9, 985 / 8)), pytest.approx((1000 / 9, 1970 / 8)))
    ]
    assert chart.lines[0].tags == ("1 rps", "2 rps")


def test_node_throughput_is_plotted_without_gpu_count(tmp_path: Path) -> None:
    result = own(1.0)
    window = result.points[0].window
    assert window is not None
    bare = replace(result.points[0], window=replace(window, output_tok_per_s_per_gpu=None))
    chart = line_charts(report_of(tmp_path, replace(result, points=(bare,))))[0]

    assert chart.y_label == "output tokens per second of the node"
    assert chart.lines[0].points[0][1] == pytest.approx(985)


def test_every_plot_has_a_caption(tmp_path: Path) -> None:
    report = report_of(tmp_path, own(1.0, 2.0))
    page = render_html(report)
    drawn = [chart for chart in line_charts(report) if chart.lines]

    assert len(drawn) >= 3
    assert page.count("<figcaption>") == len(drawn)
    description = {chart.id: chart.description for chart in drawn}
    assert description["ttft-p95"] == "95 % of the requests get their first token within this time."


def test_errors_are_listed_by_kind_and_rate(tmp_path: Path) -> None:
    result = own(1.0, 2.0)
    kinds = (
        FailureCount(kind="timeout", count=3, example="no complete response within 60 s"),
        FailureCount(kind="http-503", count=1, example="<b>no room</b>"),
    )
    points = (result.points[0], replace(result.points[1], failures=kinds, succeeded=196))
    page = render_html(report_of(tmp_path, replace(result, points=points)))

    table = page[page.index("Errors by kind") :]
    assert re.search(r"<th scope=.row.>timeout</th><td>0</td><td>3</td><td[^>]*>no complete response", table)
    assert "&lt;b&gt;no room" in table
    assert "None of 200 requests failed." in render_html(report_of(tmp_path / "well", own(1.0)))


def test_closed_load_is_reported_by_concurrency(tmp_path: Path) -> None:
    """A closed load has no rate and no knee; the report once showed no metric of it."""
    result = own(1.0)
    closed = replace(
        result.points[0],
        label="closed-8",
        arrivals="closed",
        concurrency=8,
        offered_rps=None,
        window=None,
        sustained=None,
    )
    report = report_of(tmp_path, replace(result, points=(closed,), knee_rps=None))
    terminal_text, page = texts(report)

    assert re.search(r"output tok/s per node +A\n8 at a time +788\n", terminal_text)
    assert '<th scope="row">8</th>' in page
    assert report.headline == ("TP1 on 1×L40S, owl-burst: 788 output tok/s per node, 8 at a time.",)


def test_configuration_section_precedes_plots(tmp_path: Path) -> None:
    result = own(1.0)
    plan = {**(result.run.provenance.plan or {}), "flags": [{"name": "enable-metrics", "values": []}]}
    location = replace(result.run.provenance, plan=plan)
    page = render_html(report_of(tmp_path, replace(result, run=replace(result.run, provenance=location))))
    section = page[page.index('id="ran"') : page.index('id="plots"')]

    for fact in ("owl", "sglang 0.5.14", "1×L40S", "enable-metrics", "800 tokens in, 64 out", "200 at 1"):
        assert fact in section
