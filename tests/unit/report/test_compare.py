"""Comparison of measured with published metrics: agreement, comparability issues and missing metrics."""

from dataclasses import replace

import pytest
from measured_samples import b200, marked, point, single_stream, tp4dp2, tp8

from orchestrator.bench import metrics
from orchestrator.bench.published import (
    PriceBook,
    Prices,
    all_published,
    load_published,
    parse_by_gpu,
)
from orchestrator.bench.result import BenchResult, IssueKind, ServerProvenance
from orchestrator.core.errors import UsageError
from orchestrator.report.compare import Agreement, Comparison, ComparisonTerms, compare
from orchestrator.report.document import build_report
from orchestrator.report.render import render_html
from orchestrator.report.text import comparison_text

PUBLISHED = load_published("wafer-glm52")
TCO = PriceBook(user_prices={}, published=all_published(Prices))


def compared(result: BenchResult, prices: PriceBook = TCO) -> Comparison:
    return compare(result, PUBLISHED, prices)


@pytest.mark.parametrize(
    ("measured", "higher_is_better", "agreement"),
    [
        (100.0, True, Agreement.WITHIN),
        (115.0, True, Agreement.WITHIN),
        (116.0, True, Agreement.BETTER),
        (84.0, True, Agreement.WORSE),
        (84.0, False, Agreement.BETTER),
        (116.0, False, Agreement.WORSE),
        (None, True, Agreement.NOT_MEASURED),
    ],
)
def test_agreement_respects_metric_direction(
    measured: float | None, higher_is_better: bool, agreement: Agreement
) -> None:
    terms = ComparisonTerms(tolerance=0.15, comparable=True)
    assert terms.compare(measured, 100.0, higher_is_better=higher_is_better).agreement is agreement


def test_rows_are_matched_by_rate() -> None:
    row = next(row for row in compared(tp4dp2()).rows if row.rate_rps == 2.25)
    assert row.of(metrics.TTFT_P95).measured == 1.31
    assert row.of(metrics.TTFT_P95).published == 1.23
    assert row.of(metrics.TTFT_P95).change == pytest.approx(0.065, abs=1e-3)
    assert row.of(metrics.TTFT_P95).agreement is Agreement.WITHIN


def test_published_throughput_above_its_load_is_untestable() -> None:
    """The published 1,913 tok/s exceed the 1,500 tok/s of a steady state at 1.5 rps with 1,000 output tokens."""
    agreements = {row.rate_rps: row.of(metrics.OUTPUT).agreement for row in compared(tp4dp2()).rows}
    assert [rate for rate, agreement in agreements.items() if agreement is Agreement.UNTESTABLE] == [1.5]


@pytest.mark.parametrize(
    "kind",
    [
        IssueKind.SIMULATED_ACCEPTANCE,
        IssueKind.CACHE_HIT_RATE_OFF_TARGET,
        IssueKind.KERNEL_MISS,
        IssueKind.FAILED_REQUESTS,
    ],
)
def test_comparability_issue_prevents_every_agreement(kind: IssueKind) -> None:
    comparison = compared(marked(tp4dp2(), kind))
    assert not comparison.comparable
    assert [reason.kind for reason in comparison.reasons] == [kind.value]
    agreements = {
        metric.agreement
        for row in comparison.rows
        for metric in (row.of(metrics.OUTPUT), row.of(metrics.BY_KEY["ttft_p50_s"]), row.of(metrics.TTFT_P95))
    }
    assert agreements == {Agreement.NOT_COMPARABLE}


def test_result_of_another_workload_is_not_comparable() -> None:
    result = tp4dp2()
    other = replace(result, run=replace(result.run, workload_name="smoke-tiny"))
    comparison = compared(other)
    assert [reason.kind for reason in comparison.reasons] == ["another-workload"]
    assert all(row.of(metrics.OUTPUT).published is None for row in comparison.rows)


def test_terminal_hides_published_rates_for_another_workload() -> None:
    result = tp4dp2()
    other = replace(result, run=replace(result.run, workload_name="smoke-tiny"))
    texts = {
        text: comparison_text(build_report((text_result,), published=PUBLISHED, prices=TCO))
        for text, text_result in (("same", result), ("other", other))
    }
    assert "output tok/s per node  published  A" in texts["same"]
    assert "output tok/s per node  A" in texts["other"]


def test_result_of_other_or_unknown_hardware_is_not_comparable() -> None:
    result = tp4dp2()
    cpu = replace(result.run.provenance, gpu="cpu", gpus=0)
    unknown = replace(result.run.provenance, gpu=None)
    for provenance, kind in ((cpu, "another-hardware"), (unknown, "unknown-hardware")):
        comparison = compared(replace(result, run=replace(result.run, provenance=provenance)))
        assert [reason.kind for reason in comparison.reasons] == [kind]


def test_url_endpoint_is_compared_by_user_provided_hardware() -> None:
    """No B200 layout is published, so the best result is compared with the published figure of that system."""
    stated = ServerProvenance(gpu="b200", gpus=8, layout="TP8")
    base = b200()
    result = replace(base, run=replace(base.run, provenance=stated))
    comparison = compared(result)
    assert (comparison.label, comparison.comparable) == ("TP8 on 8×B200", True)
    report = build_report((result,), published=PUBLISHED, prices=TCO)
    [row] = [row for row in report.layouts if row.comparison == 0]
    assert row.change == pytest.approx(3.0 * 985 / 3192 - 1)
    unnamed = compared(replace(base, run=replace(base.run, provenance=ServerProvenance(gpus=8))))
    assert [reason.kind for reason in unnamed.reasons] == ["unknown-hardware"]


def ablated(result: BenchResult, name: str) -> BenchResult:
    """Return the result as that of a server without the feature `name`."""
    provenance = replace(result.run.provenance, name=f"{result.run.provenance.profile}-{name}")
    return replace(result, run=replace(result.run, provenance=provenance))


def test_ablation_is_compared_only_with_full_result() -> None:
    without = ablated(single_stream(), "mtp-off")
    latency = without.points[0].latency
    assert latency is not None
    slow = replace(latency, tpot_s=replace(latency.tpot_s, p50=1 / 70))  # type: ignore[type-var]
    without = replace(without, points=(replace(without.points[0], latency=slow),))
    table_off = ablated(tp4dp2(), "table-off")
    table_off = replace(table_off, knee_rps=2.0)
    results = (single_stream(), without, tp4dp2(), table_off)
    report = build_report(results, published=PUBLISHED, prices=TCO)

    assert [comparison.comparable for comparison in report.comparisons] == [True, False, True, False]
    assert report.comparisons[1].name == "TP8, mtp-off"
    assert [reason.kind for reason in report.comparisons[1].reasons] == ["ablation"]
    ablations = {(row.name, row.metric): (row.without_feature, row.with_feature, row.ratio) for row in report.ablations}
    assert ablations == {
        ("mtp-off", "single stream, tok/s"): pytest.approx((70, 208, 208 / 70)),
        ("table-off", "knee, rps"): pytest.approx((2.0, 2.4, 1.2)),
        ("table-off", "knee, tok/s"): pytest.approx((1970, 2364, 1.2)),
    }
    for text in (render_html(report), comparison_text(report)):
        assert "2.97" in text
        assert "close to 3×" in text
    assert report.headline[0].startswith("2 of 4 results must not be compared")


def test_ablation_without_full_result_is_omitted() -> None:
    results = (ablated(single_stream(), "mtp-off"),)
    report = build_report(results, published=PUBLISHED, prices=TCO)
    assert report.ablations == ()
    assert "Ablations" not in render_html(report)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("glm-5.2-mxfp4-routed", "of the published kind"),
        ("glm-5.2-mxfp4", "not of the published kind, as `glm-5.2-mxfp4-routed` is"),
    ],
)
def test_report_names_measured_checkpoint(model: str, kind: str) -> None:
    result = tp4dp2()
    provenance = replace(result.run.provenance, plan={**(result.run.provenance.plan or {}), "model": {"name": model}})
    comparison = compared(replace(result, run=replace(result.run, provenance=provenance)))
    assert comparison.caveats == (f"the checkpoint is `{model}`, {kind}",)
    assert comparison.comparable
    assert comparison.knee_rps is not None
    assert comparison.knee_rps.published == 2.4, "the published rates are still shown"


def test_unpublished_layout_is_comparable_but_has_no_rates() -> None:
    comparison = compared(tp8())
    assert comparison.comparable
    assert comparison.caveats
    assert all(row.of(metrics.OUTPUT).agreement is Agreement.NOT_PUBLISHED for row in comparison.rows)


def test_missing_metrics_are_none_not_zero() -> None:
    result = tp4dp2()
    bare = replace(point(0.5, 0.6, 0.7), window=None, latency=None, energy=None, cache=None, server=None)
    comparison = compared(replace(result, points=(bare,), knee_rps=None))
    row = next(row for row in comparison.rows if row.rate_rps == 0.5)
    assert row.of(metrics.OUTPUT).measured is None
    assert row.of(metrics.OUTPUT).agreement is Agreement.NOT_MEASURED
    assert {key for key, metric in row.metrics.items() if metric.measured is not None} == {
        "achieved_rps",
        "full_run_tok_s",
        "success_share",
    }
    assert comparison.best is None


def test_invalid_energy_counts_as_not_measured() -> None:
    result = tp4dp2()
    energy = result.points[0].energy
    assert energy is not None
    invalid = replace(result.points[0], energy=replace(energy, valid=False))
    assert compared(replace(result, points=(invalid,))).rows[0].of(metrics.JOULES).measured is None


def test_single_stream_speed_is_inverse_of_median_tpot() -> None:
    metric = compared(single_stream()).single_stream_tok_s
    assert metric is not None
    assert metric.measured == pytest.approx(208)
    assert metric.agreement is Agreement.WITHIN


def test_token_price_is_computed_from_hourly_cost() -> None:
    """8 GPUs at $1.48 per GPU-hour emit 2,626 tok/s."""
    assert metrics.usd_per_million_tokens(8 * 1.48, 2626) == pytest.approx(1.2525, abs=1e-4)
    assert metrics.usd_per_million_tokens(None, 2626) is None
    assert metrics.usd_per_million_tokens(11.84, None) is None


def test_given_price_overrides_recorded_and_published_prices() -> None:
    given = PriceBook(user_prices={"mi355x": 2.10, "b200": 4.0}, published=TCO.published)
    assert (compared(tp4dp2()).usd_per_gpu_hour, compared(tp4dp2(), given).usd_per_gpu_hour) == (1.48, 2.10)
    assert (compared(b200()).usd_per_gpu_hour, compared(b200(), given).usd_per_gpu_hour) == (3.10, 4.0)
    assert "InferenceX" in compared(tp4dp2()).price_source


@pytest.mark.parametrize("text", ["cheap", "-1", "MI355X=", "0", "inf", "nan"])
def test_invalid_price_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is not a price"):
        parse_by_gpu([text], quantity="price", hint="")
