"""The command functions of `deploy compare`, `report` and `reproduce --dry-run`."""

import json
from pathlib import Path

import pytest
from measured_samples import marked, save, single_stream, tp4dp2, tp8

from orchestrator.bench.result import IssueKind
from orchestrator.cli.compare import command as compare
from orchestrator.cli.report import command as report
from orchestrator.cli.reproduce import command as reproduce
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.evals.eval_result import AnsweredQuestion, EvalResult, eval_result_file, eval_result_to_json


@pytest.fixture
def results(tmp_path: Path) -> Path:
    save(tp4dp2(), tmp_path / "tp4dp2" / "wafer-20k-1k")
    save(marked(tp8(), IssueKind.KERNEL_MISS), tmp_path / "tp8" / "wafer-20k-1k")
    save(single_stream(), tmp_path / "tp8" / "single-stream-10k-1.5k")
    return tmp_path


def test_compare_prints_table_and_warnings(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare([results], published="wafer-glm52")
    output = capsys.readouterr()
    assert "2.4 rps                2,626      2,364" in output.out
    assert "warning: NOT COMPARABLE: TP8 on 8×MI355X, wafer-20k-1k: kernel-miss" in output.err


def test_compare_prints_json(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare([results / "tp4dp2"], json=True)
    assert len(json.loads(capsys.readouterr().out)["comparisons"]) == 1


def test_report_writes_exactly_two_files(results: Path, tmp_path: Path) -> None:
    report([results], output=tmp_path / "out", price=["2.10"])
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]
    assert "$2.10 per GPU-hour, given" in (tmp_path / "out" / "report.html").read_text()


def test_report_accepts_directories_and_files(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report([results / "tp8", results / "tp4dp2/wafer-20k-1k/result.json", results / "tp8"], json=True)
    assert len(json.loads(capsys.readouterr().out)["comparisons"]) == 3
    assert (results / "tp8/report.html").exists()
    with pytest.raises(UsageError, match="no result of `deploy bench` found"):
        report([results / "tp8", results / "empty"])


def save_score(folder: Path, model: str, *, wrong: int, suite: str = "gsm8k") -> None:
    items = tuple(AnsweredQuestion(id=str(index), correct=index >= wrong) for index in range(40))
    outcome = EvalResult(
        schema_version=3, suite=suite, task=suite, metric="exact_match", model=model, harness="lm-eval 0.4.13",
        command="deploy eval", answered=items,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / eval_result_file(suite)).write_text(eval_result_to_json(outcome))


def test_report_finds_evaluations_and_their_baseline(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_score(results, "mxfp4", wrong=12)
    save_score(results / "base", "fp8", wrong=2)
    report([results], baseline=[results / "base" / "eval-gsm8k.json"], json=True)
    (row,) = [row for row in json.loads(capsys.readouterr().out)["evals"] if row["measured"]]
    assert (row["baseline_label"], row["candidate_label"]) == ("fp8", "mxfp4")
    assert (row["judgment"]["lost"], row["judgment"]["gained"], row["judgment"]["significant"]) == (10, 0, True)


def test_report_finds_evaluations_of_each_directory(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_score(results / "tp8", "mxfp4", wrong=12)
    save_score(results / "tp4dp2", "fp8", wrong=2)
    report([results / "tp8", results / "tp4dp2"], json=True)
    rows = [row for row in json.loads(capsys.readouterr().out)["evals"] if row["measured"]]
    assert [*dict.fromkeys(row["candidate_label"] for row in rows)] == ["mxfp4", "fp8"]


def test_baseline_directory_provides_the_baseline(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_score(results, "mxfp4", wrong=12)
    save_score(results / "baseline", "fp8", wrong=2)
    report([results], json=True)
    (row,) = [row for row in json.loads(capsys.readouterr().out)["evals"] if row["measured"]]
    assert (row["baseline_label"], row["candidate_label"]) == ("fp8", "mxfp4")


def test_evaluations_alone_are_compared_with_published_scores(tmp_path: Path) -> None:
    save_score(tmp_path, "amd/GLM-5.2-MXFP4", wrong=12)
    save_score(tmp_path, "tiny", wrong=20, suite="gpqa-diamond")
    report([tmp_path])
    text = (tmp_path / "report.html").read_text()
    assert "<title>evaluations: measured and published" in text
    assert "gsm8k, exact_match: 0.7000, against 0.9550 (MXFP4, published): worse: -0.255" in text
    assert "gpqa-diamond, exact_match: 0.5000, against 0.9217 (GLM-5.2 FP8, published): not comparable" in text
    assert "another model than GLM-5.2: not comparable" in text
    assert "Results in detail" not in text


def test_directory_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no result"):
        report([tmp_path])


def test_corrupt_result_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(BenchError, match="not a valid result"):
        compare([tmp_path])


def test_reproduce_dry_run_totals_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce("wafer-glm52", dry_run=True, price=["2"], output=tmp_path / "new", json=True)
    estimate = json.loads(capsys.readouterr().out)
    assert estimate["total"]["estimated_s"] == pytest.approx(
        sum(step["estimated_s"] for step in estimate["steps"]), abs=len(estimate["steps"])
    )
    assert estimate["total"]["cost"] == pytest.approx(estimate["total"]["estimated_s"] / 3600 * 16, rel=1e-3)
    assert not (tmp_path / "new").exists()
