"""Several results in one report: names, differences, changes and noise."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import marked, point, save, tp4dp2, tp8

from orchestrator.bench.result import BenchResult, CacheHits, IssueKind, ServerProvenance
from orchestrator.cli.compare import command as compare
from orchestrator.report.configuration import grouped, same_load
from orchestrator.report.document import Report
from orchestrator.report.render import render_html
from orchestrator.report.text import comparison_text
from orchestrator.report.write import make_report


def run(rate: float = 2.0, *, tpot_ms: float = 9.0, tok_s: float = 1970.0, plan: str = "one") -> BenchResult:
    """Return a result of one rate on the user's own hardware; `plan` is the digest of its plan."""
    base = tp4dp2()
    only = point(rate, 0.5, 0.6)
    assert only.latency is not None
    assert only.latency.tpot_s is not None
    assert only.window is not None
    latency = replace(only.latency, tpot_s=replace(only.latency.tpot_s, p50=tpot_ms / 1000))
    only = replace(only, latency=latency, window=replace(only.window, output_tok_per_s=tok_s))
    layout: dict[str, object] = {"layout": {"tp": 1, "dp": 1}, "flags": [{"name": "page-size", "values": [plan]}]}
    location = replace(base.run.provenance, gpu="l40s", gpus=1, plan=layout, plan_digest=plan)
    return replace(base, run=replace(base.run, provenance=location, workload_name="own"), points=(only,), knee_rps=rate)


def report_of(tmp_path: Path, **results: BenchResult) -> Report:
    files = [save(result, tmp_path / name) for name, result in results.items()]
    return make_report(files, published="none", prices=())


def test_results_are_named_by_label_or_directory(tmp_path: Path) -> None:
    after = run(plan="two")
    report = report_of(tmp_path, before=run(), after=replace(after, run=replace(after.run, label="page size two")))

    assert [comparison.label for comparison in report.comparisons] == ["before (TP1 on 1×L40S)", "page size two"]
    terminal = comparison_text(report)
    assert "A: before (TP1 on 1×L40S), own\n" in terminal
    assert "B: page size two, own\n" in terminal
    assert "<small>own</small>" in render_html(report)


def test_results_with_same_label_are_numbered(tmp_path: Path) -> None:
    one, two = run(plan="one"), run(plan="two")
    one, two = (replace(result, run=replace(result.run, label="mine")) for result in (one, two))

    assert [comparison.name for comparison in report_of(tmp_path, a=one, b=two).comparisons] == ["mine", "mine (2)"]


def test_differences_precede_metrics(tmp_path: Path) -> None:
    terminal = comparison_text(report_of(tmp_path, before=run(), after=run(plan="two", tpot_ms=4.5)))

    assert re.search(r"differs +A +B\nflags.page-size +one +two", terminal)
    assert terminal.index("differs") < terminal.index("\noutput tok/s per node")
    assert re.search(r"TPOT p50 ms +A +B +B against A\n2 rps +9 +4.5 +−50 %\n", terminal)
    assert re.search(r"tok/s per user +A +B +B against A\n2 rps +111 +222 +\+100 %\n", terminal)
    assert terminal.count("knee: at least 2 rps") == 2
    assert "One run each: the noise is unknown." in terminal


def test_different_traces_are_different_loads(tmp_path: Path) -> None:
    one, two = run(plan="one"), run(plan="two")
    one, two = (
        replace(result, run=replace(result.run, trace_sha256=sha)) for result, sha in ((one, "a" * 64), (two, "b" * 64))
    )
    assert not same_load(*report_of(tmp_path, a=one, b=two).comparisons)
    assert same_load(
        *report_of(tmp_path / "same", a=one, b=replace(two, run=replace(two.run, trace_sha256="a" * 64))).comparisons
    )


def test_repeated_runs_yield_confidence_intervals(tmp_path: Path) -> None:
    """Mean 1000, deviation 10: half of the interval is 4.303 × 10 / √3 = 24.8, much less than 20 %."""
    runs = {f"old-{index}": run(tok_s=tok_s, plan="one") for index, tok_s in enumerate((990.0, 1000.0, 1010.0))}
    runs |= {f"new-{index}": run(tok_s=tok_s, plan="two") for index, tok_s in enumerate((1190.0, 1200.0, 1210.0))}
    report = report_of(tmp_path, **runs)
    terminal, page = comparison_text(report), render_html(report)

    assert [(side.name, side.runs) for side in report.side_by_side.groups] == [("old", (0, 1, 2)), ("new", (3, 4, 5))]
    assert re.search(r"output tok/s per node +A +B +B against A\n2 rps +1,000 ± 24.8 +1,200 ± 24.8 +\+20 %", terminal)
    assert "+20 % (+18 to +22 %)" in terminal
    assert "+20 % (+18 to +22 %)" in page
    assert "TTFT p95 s" in terminal
    assert "(0 to 0 %, noise)" not in terminal
    assert report.headline[1] == "old, 3 runs, own: sustains at least 2 requests a second."
    assert report.headline[0] == (
        "At 2 rps, new is better than old by more than the noise: output tok/s per node +20 % (+18 to +22 %); "
        "old and new are equal: TTFT p95 0 %, TPOT p50 0 %."
    )


def test_repeated_runs_are_named_by_common_prefix(tmp_path: Path) -> None:
    """`of-2048-1` to `of-2048-3` become `of-2048`, `of10` and `of11` become `of`; no card shows a single run."""
    runs = {f"of-2048-{index}": run(plan="one") for index in (1, 2, 3)} | {
        f"of{index}": run(plan="two") for index in (10, 11)
    }
    report = report_of(tmp_path, **runs)
    page = render_html(report)

    assert [side.name for side in report.side_by_side.groups] == ["of-2048", "of"]
    assert '<dl class="key"' not in page
    assert "111</td>" in page
    assert "± 0" not in page


def test_two_runs_of_one_configuration_are_compared(tmp_path: Path) -> None:
    text = comparison_text(report_of(tmp_path, before=run(tok_s=1000.0), after=run(tok_s=1100.0)))

    assert re.search(r"output tok/s per node +A +B +B against A\n2 rps +1,000 +1,100 +\+10 %\n", text)
    assert "Both have the same configuration: the differences are noise, or a change that no result records." in text
    assert text.endswith("\nThree or more runs are one column, with intervals.\n")


def test_comparability_issue_is_not_called_noise(tmp_path: Path) -> None:
    text = comparison_text(report_of(tmp_path, before=run(), after=marked(run(tok_s=1100.0), IssueKind.CLIENT_LAGGED)))

    assert text.startswith("No verdict on after and before: after is NOT COMPARABLE (client-lagged).\n")
    assert "are noise" not in text
    assert "\nBoth have the same configuration; the reason for NOT COMPARABLE may explain the differences.\n" in text


def test_no_verdict_without_common_load(tmp_path: Path) -> None:
    report = report_of(tmp_path, before=run(rate=2.0), after=run(rate=3.0, plan="two"))
    message = "No verdict on after and before: no load has a throughput in both."
    assert comparison_text(report).startswith(f"{message}\n")
    assert message in render_html(report)
    assert report.headline[0] == message


def test_no_verdict_without_common_workload(tmp_path: Path) -> None:
    other = run(plan="two")
    other = replace(other, run=replace(other.run, workload={**other.run.workload, "input_tokens": 1}))
    report = report_of(tmp_path, before=run(), after=other)
    assert report.headline[0] == "No verdict on after and before: their workloads differ."


def test_different_clients_prevent_a_verdict(tmp_path: Path) -> None:
    other = run(plan="two")
    report = report_of(tmp_path, before=run(), after=replace(other, run=replace(other.run, client="aiperf 0.13.0")))
    assert report.headline[0] == "No verdict on after and before: two programs sent their load."


def test_zero_throughput_baseline_prevents_a_verdict(tmp_path: Path) -> None:
    report = report_of(tmp_path, before=run(tok_s=0.0), after=run(plan="two"))
    assert report.headline[0] == "No verdict on after and before: before has 0 output tok/s per node."


def test_verdict_names_every_result(tmp_path: Path) -> None:
    report = report_of(tmp_path, a=run(), b=run(plan="two", tok_s=985.0), c=run(plan="three", tok_s=3940.0))
    assert "c is better than a: output tok/s per node +100 % and against b +300 %" in report.headline[0]


def test_result_missing_the_common_load_is_named(tmp_path: Path) -> None:
    low, high = run(rate=2.0), run(rate=3.0)
    both = replace(high, points=(*low.points, *high.points))
    other = replace(run(rate=2.0, plan="two"), points=run(rate=2.0, plan="two").points)
    third = run(rate=3.0, plan="three")
    report = report_of(tmp_path, a=both, b=other, c=third)
    assert report.headline[0].startswith("At 3 rps, a and c are equal")
    assert report.headline[1] == "No verdict on b: not measured at 3 rps."


def test_differing_knees_name_their_runs(tmp_path: Path) -> None:
    below = replace(run(), knee_rps=None, points=(replace(run().points[0], sustained=False),))
    terminal = comparison_text(report_of(tmp_path, a=run(), b=below, c=run()))

    assert "   knee: at least 2 rps (a)\n   knee: none found (b)\n   knee: at least 2 rps (c)\n" in terminal
    assert comparison_text(report_of(tmp_path, a=run(), b=run(), c=run())).count("knee") == 1


def test_shares_have_no_relative_change(tmp_path: Path) -> None:
    """From 0.1 % to 0 % the change would be −100 %."""
    hit, missed = run(plan="one"), run(plan="two")
    cache = hit.points[0].cache
    assert cache is not None
    hit, missed = (
        replace(result, points=(replace(result.points[0], cache=replace(cache, usage_share=share)),))
        for result, share in ((hit, 0.0004), (missed, 0.0))
    )
    terminal = comparison_text(report_of(tmp_path, hit=hit, missed=missed))

    assert re.search(r"from cache +A +B *\n2 rps +0 % +0 % *\n", terminal)


def test_change_within_noise_is_labeled(tmp_path: Path) -> None:
    runs = {f"old-{index}": run(tok_s=tok_s, plan="one") for index, tok_s in enumerate((900.0, 1000.0, 1100.0))}
    runs |= {f"new-{index}": run(tok_s=tok_s, plan="two") for index, tok_s in enumerate((950.0, 1050.0, 1150.0))}

    assert re.search(r"\+5 % \(−\d+ to \+\d+ %, noise\)", comparison_text(report_of(tmp_path, **runs)))


def test_url_results_are_grouped_only_by_label(tmp_path: Path) -> None:
    """The same URL may serve another model by now; a label marks runs as repeated."""

    def with_url(label: str | None) -> BenchResult:
        base = run()
        location = replace(base.run.provenance, plan=None, plan_digest=None, name=None)
        return replace(base, run=replace(base.run, provenance=location, label=label))

    for label, groups in ((None, 3), ("it", 1)):
        runs = {name: with_url(label) for name in "abc"}
        assert len(report_of(tmp_path / str(label), **runs).side_by_side.groups) == groups
    assert len(report_of(tmp_path / "z", a=with_url("it"), b=with_url("that")).side_by_side.groups) == 2


def test_results_of_different_loads_show_no_change(tmp_path: Path) -> None:
    other = run(plan="two")
    longer = replace(other, run=replace(other.run, workload={**other.run.workload, "output_tokens": 64}))
    report = report_of(tmp_path, one=run(), two=longer)

    assert all(change is None for row in report.side_by_side.rows for change in row.changes)
    assert not any(" rps, " in sentence for sentence in report.headline)


@pytest.mark.parametrize(("kinds", "is_reported"), [((IssueKind.KERNEL_MISS,), False), ((), True)])
def test_headline_skips_results_with_comparability_issues(
    tmp_path: Path, kinds: tuple[IssueKind, ...], is_reported: bool
) -> None:
    report = report_of(tmp_path, one=run(), two=marked(run(plan="two"), *kinds))

    assert any("two are equal" in sentence for sentence in report.headline) == is_reported


def test_compare_shows_published_results_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tp4dp2(), tmp_path / "a")
    save(tp8(), tmp_path / "b")
    compare([tmp_path])
    assert "published" not in capsys.readouterr().out
    compare([tmp_path], published="wafer-glm52")
    assert "output tok/s per node  published  A" in capsys.readouterr().out


def of_vllm(result: BenchResult, version: str = "0.32.0", **facts: object) -> BenchResult:
    """Return the result as if it were measured at a vLLM URL, without a plan."""
    endpoint = replace(result.run.endpoint, engine="vllm", engine_version=version, **facts)  # type: ignore[arg-type]
    return replace(result, run=replace(result.run, endpoint=endpoint, provenance=ServerProvenance()))


def test_endpoint_of_another_engine_is_compared(tmp_path: Path) -> None:
    report = report_of(tmp_path, ours=run(tpot_ms=9.0), theirs=of_vllm(run(tpot_ms=12.0, tok_s=2200.0)))
    terminal = comparison_text(report)

    assert terminal.startswith(
        "At 2 rps, theirs (vllm 0.32.0) is better than ours (sglang 0.5.14): output tok/s per node +12 %; "
        "ours (sglang 0.5.14) and theirs (vllm 0.32.0) are equal: TTFT p95 0 %; "
        "ours (sglang 0.5.14) is better than theirs (vllm 0.32.0): TPOT p50 −25 %; "
        "the noise is unknown, with one run each.\n\n"
    )
    assert "B: theirs on unknown hardware, own\n" in terminal
    differs = terminal.split("differs", 1)[1].split("\n\n")[0]
    assert re.search(r"endpoint.engine +sglang 0.5.14 +vllm 0.32.0\n", differs)
    assert re.search(r"settings +\d+ known +unknown", differs)
    assert "flags.page-size" not in differs
    important, _ = grouped(report.differences)
    values_by_key = {item.key: item.values for item in important}
    assert values_by_key["Hardware"] == ("1×L40S", "")
    assert values_by_key["Engine"] == ("sglang 0.5.14", "vllm 0.32.0")
    assert values_by_key["Layout"] == ("TP1", "")


def test_dp_rank_count_and_engine_version_are_shown(tmp_path: Path) -> None:
    text = comparison_text(report_of(tmp_path, a=of_vllm(run(), dp_ranks=2), b=of_vllm(run(), "0.33.0", dp_ranks=2)))

    assert "A: a (DP2 on unknown hardware), own" in text
    assert re.search(r"endpoint.engine +vllm 0.32.0 +vllm 0.33.0\n", text)


def test_cached_tokens_reported_by_one_side_are_named(tmp_path: Path) -> None:
    output = run()
    point = replace(output.points[0], cache=CacheHits(wanted_share=0.6), server=None)
    terminal = comparison_text(report_of(tmp_path, a=output, b=of_vllm(replace(output, points=(point,)))))

    assert re.search(r"; from cache a \(sglang 0.5.14\) [\d.]+ %, b \(vllm 0.32.0\) not reported\.\n", terminal)


def test_endpoint_of_another_engine_gets_no_sglang_advice(tmp_path: Path) -> None:
    theirs = of_vllm(run(plan="two", tok_s=2200.0), dp_ranks=2)
    theirs = replace(
        theirs, run=replace(theirs.run, provenance=ServerProvenance(gpu="mi300x", gpus=8, layout="TP4×DP2"))
    )
    issue = [kind for kind in IssueKind if kind is IssueKind.CACHE_HIT_RATE_UNKNOWN]
    report = report_of(tmp_path, ours=run(), theirs=marked(theirs, *issue))
    page = render_html(report)

    assert [(item.key, *item.values) for item in grouped(report.differences)[0]][:3] == [
        ("Hardware", "1×L40S", "8×MI300X"),
        ("Layout", "TP1", "TP4×DP2"),
        ("Engine", "sglang 0.5.14", "vllm 0.32.0"),
    ]
    section = page[page.rindex("<summary><h3>theirs") :]
    assert "Only the endpoint's own data is known." in section
    assert not any(word in section for word in ("kernel gate", "patch receipt", "not known", "--enable"))


def test_important_differences_come_first_and_others_are_collapsed(tmp_path: Path) -> None:
    """Eight groups differ: five are shown in order of importance, `details` contains the others."""
    plans: list[dict[str, object]] = [
        {
            "layout": {"tp": tp, "dp": 8 // tp},
            "engine": {"version": version, "image": f"image-{version}"},
            "model": {"name": f"model-{tp}", "quantization": f"fp{tp}"},
            "flags": [
                {"name": "speculative-num-steps", "values": [str(tp)]},
                {"name": "page-size", "values": [str(tp)]},
            ],
            "hardware": {"name": f"gpu-{tp}"},
            "warnings": [{"id": "hang", "summary": version}],
        }
        for tp, version in ((8, "0.5.16"), (4, "0.5.20"))
    ]
    results = [run(), run()]
    for index, plan in enumerate(plans):
        provenance = replace(results[index].run.provenance, plan=plan, plan_digest=str(index), patch_receipt=None)
        results[index] = replace(results[index], run=replace(results[index].run, provenance=provenance))
    report = report_of(tmp_path, a=results[0], b=results[1])
    important, collapsed = grouped(report.differences)

    assert [(difference.key, difference.values) for difference in important] == [
        ("Model", ("model-8", "model-4")),
        ("Hardware", ("gpu-8", "gpu-4")),
        ("Layout", ("dp 1, tp 8", "dp 2, tp 4")),
        ("Engine", ("0.5.16", "0.5.20")),
        ("Image", ("image-0.5.16", "image-0.5.20")),
    ]
    folded_keys = ["flags.page-size", "flags.speculative-num-steps", "model.quantization"]
    assert [difference.key for difference in collapsed] == folded_keys
    folded = render_html(report).partition("<details><summary>3 other values</summary>")[2].partition("</details>")[0]
    assert all(f"{key}</th>" in folded for key in folded_keys)


@pytest.mark.parametrize(("names", "folded"), [(("page-size",), 0), (("a", "b", "c", "d", "e"), 0), ("abcdef", 6)])
def test_few_differences_are_not_collapsed(tmp_path: Path, names: Sequence[str], folded: int) -> None:
    results = [run(), run()]
    for index in range(2):
        plan = {"flags": [{"name": name, "values": [str(index)]} for name in names]}
        provenance = replace(results[index].run.provenance, plan=plan, plan_digest=str(index))
        results[index] = replace(results[index], run=replace(results[index].run, provenance=provenance))
    report = report_of(tmp_path, a=results[0], b=results[1])
    important, collapsed = grouped(report.differences)
    assert (len(important), len(collapsed)) == (len(names) - folded, folded)
    section = render_html(report).partition('<section id="differences">')[2].partition("</section>")[0]
    assert ("<details>" in section) is bool(folded)


def test_repeated_runs_provide_noise_for_a_single_run(tmp_path: Path) -> None:
    """1,000 and 1,010 tok/s: 20 % exceed the noise, 2 % do not; the noise of single runs is unknown."""
    before = {f"before-{index}": run(tok_s=tok_s, plan="one") for index, tok_s in enumerate((1000.0, 1010.0))}

    def first(tok_s: float, **results: BenchResult) -> str:
        return report_of(
            tmp_path / str(len(results)) / str(tok_s), **results, after=run(tok_s=tok_s, plan="two")
        ).headline[0]

    assert "after is better than before by more than the noise: output tok/s per node +19 %" in first(1200.0, **before)
    assert "differ by no more than the noise: output tok/s per node +2 %" in first(1025.0, **before)
    assert "; the noise is unknown, with one run each." in first(1200.0, before=run(tok_s=1000.0, plan="one"))


def test_two_runs_of_same_configuration_show_noise(tmp_path: Path) -> None:
    assert report_of(tmp_path, a=run(tok_s=1000.0), b=run(tok_s=1020.0)).headline[0] == (
        "At 2 rps, a and b have the same configuration and differ only by noise, or by something that results do not "
        "record: "
        "output tok/s per node +2 %, TTFT p95 0 %, TPOT p50 0 %."
    )


def test_best_of_three_is_compared_with_the_second(tmp_path: Path) -> None:
    speeds = {"slow": 1000.0, "fast": 1500.0, "middle": 1200.0}
    report = report_of(tmp_path, **{name: run(tok_s=tok_s, plan=name) for name, tok_s in speeds.items()})

    assert report.headline[0].startswith(
        "At 2 rps, fast is better than middle: output tok/s per node +25 % and against slow +50 %; "
    )


def test_cache_tiers_are_summarized_in_one_row(tmp_path: Path) -> None:
    tiers = [
        {"name": "enable-hierarchical-cache", "values": []},
        {"name": "hicache-ratio", "values": ["4"]},
        {"name": "hicache-storage-backend", "values": ["file"]},
    ]
    results = [run(), run()]
    for index, flags in enumerate(([], tiers)):
        provenance = replace(
            results[index].run.provenance, plan={"flags": flags, "host_cache_bytes": index}, plan_digest=str(index)
        )
        results[index] = replace(results[index], run=replace(results[index].run, provenance=provenance))
    important, collapsed = grouped(report_of(tmp_path, a=results[0], b=results[1]).differences)
    words = "host memory 4 x the device's pool, storage file, write_through"
    assert (important[0].key, important[0].values) == ("Cache tiers", ("", words))
    assert "host_cache_bytes" not in {difference.key for difference in (*important, *collapsed)}
    assert "storage file, write_through" in render_html(report_of(tmp_path, a=results[0], b=results[1]))

    results[0] = marked(results[0], IssueKind.CACHE_HIT_RATE_OFF_TARGET)  # a tier may change the hit rate
    assert comparison_text(report_of(tmp_path, a=results[0], b=results[1])).startswith("At 2 rps, ")
    same = [results[0], replace(results[1], run=results[0].run)]
    text = comparison_text(report_of(tmp_path, a=same[0], b=same[1]))
    assert text.startswith("No verdict on b and a: a is NOT COMPARABLE (cache-hit-rate-off-target)")
