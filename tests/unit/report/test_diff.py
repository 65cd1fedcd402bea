"""`deploy diff`: profiles, runs and results side by side."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import save, tp4dp2, tp8
from run_samples import past_run

from orchestrator.cli.diff import OUTPUT
from orchestrator.core.errors import DeployError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.plan.diff import render_diff
from orchestrator.report.diff import DiffOutput, DiffSide, diff, diff_text, resolve_side
from orchestrator.report.text import comparison_text
from orchestrator.report.write import make_report
from orchestrator.runs.run_dir import RunDir
from orchestrator.servers.targets import record_result


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def diff_of(home: Home, a: str, b: str) -> DiffOutput:
    return diff(resolve_side(a, home), resolve_side(b, home))


def changes(output: DiffOutput) -> dict[str, tuple[str, str, str]]:
    return {difference.key: (difference.area, difference.a, difference.b) for difference in output.differences}


def test_diff_of_runs_covers_every_area(home: Home) -> None:
    a, b = past_run(home, 1), past_run(home, 2, "flags.max-total-tokens=32768", "server.port=2", verified=False)
    for run, version, shards, state in ((a, "7.0", 1, "applied"), (b, "7.2", 2, "upstream")):
        checkpoint = f"{shards} shards, 21 tensors" + (", as in its receipt" if shards == 2 else "")
        checks = {"driver": version, "checkpoint": checkpoint, "disk": f"{shards} GB free"}
        run.save("preflight.json", {"findings": [{"check": key, "value": text} for key, text in checks.items()]})
        run.save("image.json", {"id": f"sha256:{version}"})
        run.save("patches.json", {"patches": [{"id": "mtp", "state": state}]})
    output = diff_of(home, f"owl/{a.path.name}", b.path.name)
    assert output.b.endswith("of `cpu-tiny --set flags.max-total-tokens=32768 --set server.port=2`")
    assert changes(output) == {
        "flags.max-total-tokens": ("configuration", "65536", "32768"),
        "server.port": ("configuration", "30010", "2"),
        "image": ("image", "sha256:7.0", "sha256:7.2"),
        "patched.mtp": ("image", "applied", "upstream"),
        "weights": ("weights", "1 shards, 21 tensors", "2 shards, 21 tensors"),
        "host.driver": ("host", "7.0", "7.2"),
        "outcome.smoke.checks that failed": ("outcome", "", "streaming matches"),
        "outcome.smoke.failed": ("outcome", "", "1"),
        "outcome.smoke.passed": ("outcome", "2", "1"),
    }
    assert output.unknown == ()
    assert [difference.area for difference in output.differences] == [
        *("configuration", "configuration", "image", "image", "weights", "host", "outcome", "outcome", "outcome")
    ]


def test_diff_of_profiles_names_origins_of_differences(home: Home) -> None:
    output = diff_of(home, "mi355x-tp4dp2", "mi355x-tp4dp2-current")
    reasons = {key: (reason_.a, reason_.b) for reason_ in output.reasons for key in reason_.keys}
    was, now = reasons["flags.dsa-decode-backend"]
    assert (was.startswith("recipe: "), now.startswith("recipe: sglang #39106; 16 heads")) == (True, True)
    assert reasons["env.SGLANG_OPT_USE_TOPK_V2"][0] == ""
    assert "InferenceX #3117" in reasons["env.SGLANG_OPT_USE_TOPK_V2"][1]
    assert "sglang PR 40570" in reasons["engine.image"][1]
    text = diff_text(output, width=120)
    assert max(map(len, text.splitlines())) <= 160  # an image digest is not wrapped
    assert "\n    B: recipe: sglang #39106; 16 heads a rank: 1.5 to 2.7 x as fast" in text
    assert json.loads(json.dumps(OUTPUT.data(output)))["reasons"][0]["keys"]


def test_shared_reason_is_printed_once(home: Home) -> None:
    past_run(home, 1, "flags.max-total-tokens=32768")
    output = diff_of(home, "owl", "cpu-tiny")
    [reason] = [reason_ for reason_ in output.reasons if "flags.max-total-tokens" in reason_.keys]
    assert reason.a.startswith("user")
    assert reason.b != reason.a
    same = diff_of(home, "mi355x-tp8", "mi355x-tp8-july")
    assert all(reason_.a or reason_.b for reason_ in same.reasons)


def test_checkpoint_verified_by_receipt_is_no_difference(home: Home) -> None:
    a, b = past_run(home, 1), past_run(home, 2)
    a.save("preflight.json", {"findings": [{"check": "checkpoint", "found": "1 shards"}]})
    b.save("preflight.json", {"findings": [{"check": "checkpoint", "found": "1 shards, as in its receipt"}]})
    assert changes(diff_of(home, str(a.path), str(b.path))) == {}
    assert "no differences in what" in diff_text(diff_of(home, str(a.path), str(b.path)))


def test_empty_value_missing_in_older_plan_is_no_difference(home: Home) -> None:
    a, b = past_run(home, 1), past_run(home, 2)
    a.save("plan.json", {key: value for key, value in a.read("plan.json").items() if key != "prebuilt_image"})
    assert changes(diff_of(home, str(a.path), str(b.path))) == {}


def test_diff_of_results_compares_metrics(home: Home, tmp_path: Path) -> None:
    save(tp4dp2(), tmp_path / "a")
    save(tp8(), tmp_path / "b")
    output = diff_of(home, str(tmp_path / "a"), str(tmp_path / "b" / "result.json"))
    assert changes(output)["layout.tp"] == ("configuration", "4", "8")
    rows = {(row.metric, row.load): (row.a, row.b, row.change) for row in output.metrics}
    assert rows["TTFT p50 s", "0.5 rps"] == ("0.58", "0.49", "−16 %")
    assert rows["TTFT p50 s", "2.4 rps"] == ("0.84", "-", "")
    assert "One run each: the noise is unknown." in diff_text(output)
    assert json.loads(json.dumps(OUTPUT.data(output)))["metrics"][0]["workload"] == "wafer-20k-1k"


def test_diff_and_compare_agree_on_noise(home: Home, tmp_path: Path) -> None:
    """Another seed of the prompts does not make another load."""
    other = tp8()
    seeded = replace(other.run, workload={**other.run.workload, "seed": 7}, started_at="2026-07-02T00:00:00Z")
    files = [save(result, tmp_path / name) for name, result in (("a", tp8()), ("b", replace(other, run=seeded)))]
    output = diff_of(home, *map(str, files))
    [sentence] = [line for line in diff_text(output).splitlines() if "noise" in line]
    assert sentence.startswith("Both have the same configuration")
    assert sentence in comparison_text(make_report(files, published="none", prices=())).splitlines()
    assert output.same_configuration


def test_runs_are_compared_by_latest_shared_measurements(home: Home, tmp_path: Path) -> None:
    def measure(run: RunDir, at: str, workload: str, folder: str) -> None:
        base = tp8()
        provenance = replace(base.run.provenance, name="owl", plan_digest=run.digest + "0" * 56)
        points = base.points if folder != "late" else base.points[:1]
        changed = replace(base.run, provenance=provenance, started_at=at, workload_name=workload)
        record_result(run, save(replace(base, run=changed, points=points), tmp_path / "results" / folder).parent)

    a, b = past_run(home, 1), past_run(home, 2, "server.port=2")
    measure(a, "2026-07-01T01:00:00Z", "x", "early")
    measure(a, "2026-07-01T02:00:00Z", "x", "late")
    measure(b, "2026-07-02T01:00:00Z", "x", "other")
    measure(b, "2026-07-02T01:00:00Z", "y", "alone")
    output = diff_of(home, str(a.path), str(b.path))
    assert {row.workload for row in output.metrics} == {"x"}
    assert [row.a for row in output.metrics if row.metric == "TTFT p50 s"] == ["0.49", "-", "-", "-"]
    output = diff_of(home, str(a.path), "cpu-tiny")
    assert "B has no measurement" in output.unknown


def test_facts_known_on_one_side_are_unknown_not_different(home: Home) -> None:
    past_run(home, 1, "server.port=2")
    output = diff_of(home, "cpu-tiny", "owl")
    assert changes(output) == {"server.port": ("configuration", "30010", "2")}
    assert output.unknown == ("A has no record of its host", "A has no record of its outcome")


def test_result_without_plan_is_compared_by_known_facts(home: Home, tmp_path: Path) -> None:
    result = tp8()
    bare = replace(result.run.provenance, plan=None, plan_digest=None, patch_receipt=None, host=None)
    save(replace(result, run=replace(result.run, provenance=bare)), tmp_path / "a")
    save(result, tmp_path / "b")
    output = diff_of(home, str(tmp_path / "a"), str(tmp_path / "b"))
    assert not [key for key in changes(output) if key.startswith(("layout", "flags"))]
    assert "A has no record of its plan" in output.unknown


def test_up_and_diff_report_same_differences(home: Home) -> None:
    a, b = past_run(home, 1), past_run(home, 2, "flags.max-total-tokens=32768")
    up_lines = render_diff(a.read("plan.json"), b.read("plan.json")).splitlines()
    [difference] = [
        difference for difference in diff_of(home, str(a.path), str(b.path)).differences if difference.area != "outcome"
    ]
    assert up_lines == [f"- {difference.key}: {difference.a}", f"+ {difference.key}: {difference.b}"]


def test_questions_are_identified_by_index() -> None:
    """All questions of a model once had the key `None`, so only the last one was compared."""
    questions = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    output = render_diff({"questions": questions}, {"questions": [{**questions[0], "answer": "3"}, questions[1]]})
    assert output == "- questions.1.answer: 1\n+ questions.1.answer: 3"


def test_unknown_diff_side_is_rejected_with_hint(home: Home) -> None:
    past_run(home, 1)
    with pytest.raises(UsageError, match="cannot compare `owls`") as caught:
        resolve_side("owls", home)
    assert "`owl`" in caught.value.hint
    with pytest.raises(UsageError, match="is a URL; `deploy diff` compares profiles, runs and results") as caught:
        resolve_side("http://h:1", home)
    assert "`deploy bench http://h:1` writes a result" in caught.value.hint


def without_plan(run: RunDir) -> str:
    (run.path / "plan.json").write_text("{")
    return str(run.path)


def fifo_plan(run: RunDir) -> str:
    (run.path / "plan.json").unlink()
    os.mkfifo(run.path / "plan.json")
    return f"owl/{run.path.name}"


def linked_plan(run: RunDir) -> str:
    (run.path / "plan.json").rename(run.path / "other")
    (run.path / "plan.json").symlink_to(run.path / "other")
    return str(run.path)


def fifo_result(run: RunDir) -> str:
    os.mkfifo(run.path / "a.json")
    return str(run.path / "a.json")


def damaged_result(run: RunDir) -> str:
    (run.path / "result.json").write_text("{")
    return str(run.path / "result.json")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [without_plan, fifo_plan, linked_plan, fifo_result, damaged_result])
def test_unreadable_diff_side_is_an_immediate_error(home: Home, make: Callable[[RunDir], str]) -> None:
    with pytest.raises(DeployError) as caught:
        resolve_side(make(past_run(home, 1)), home)
    assert isinstance(caught.value, StartError | UsageError) or caught.value.exit_code == 10


def test_hostile_plan_values_are_plain_text(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = past_run(home, 1)
    run.save("plan.json", {"layout": {"tp": "\x1b]0;x\x07"}, "flags": [7, {"name": "x"}, []], "patches": {"a": [[[]]]}})
    side = resolve_side(str(run.path), home)
    assert isinstance(side, DiffSide)
    assert diff_text(diff(side, resolve_side("cpu-tiny", home)))
    assert capsys.readouterr().out == ""
