"""Test the output and exit codes of `deploy kernels`."""

import json
import sys
from pathlib import Path

import pytest
from kernel_samples import FALLBACK, FP8_ROW, FUSED_TP8, HEADER, HIT, UNFUSED_TP8, line

from orchestrator.cli.main import main

NEWER = ("--set", "engine=sglang-0.5.16-rocm")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def deploy(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr("orchestrator.cli.exit_codes.signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["deploy", "kernels", *argv])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


@pytest.fixture
def full_table(tmp_path: Path) -> Path:
    """Return a table with every bucket of both keys of `mi355x-tp8`."""
    path = tmp_path / "tuned.csv"
    lines = [line(1 << size, shape=shape) for shape in (FUSED_TP8, UNFUSED_TP8) for size in range(16)]
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    return path


def test_coverage_covers_shipped_profiles_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(monkeypatch, "coverage") == 9
    captured = capsys.readouterr()
    assert "mi355x-tp8: TP8 on gfx950, 256 CUs" in captured.out
    assert "key model_dim 6144, inter_dim 512, expert 256, topk 8" in captured.out
    assert "keys without a tuned kernel: 6 of `mi355x-tp4dp2-july`, 16 of `mi355x-tp8-july`" in captured.err


def test_unknown_aiter_reports_unknown_coverage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(monkeypatch, "coverage", "mi355x-tp8-current") == 0
    stdout = capsys.readouterr().out
    assert "tuned kernels: unknown for aiter 4ad99832823d; `deploy kernels coverage mi355x-tp8-current" in stdout
    assert "missing" not in stdout
    assert deploy(monkeypatch, "coverage", "mi355x-tp8-current", "--json") == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["unknown"].startswith("unknown for aiter 4ad99832823d; ")
    assert report["keys"] == []


def test_fp8_lookup_uses_block_scales_and_gpu_dtype(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "fp8.csv"
    path.write_text("\n".join((HEADER, *(FP8_ROW.format(token=1 << size) for size in range(15)))) + "\n")
    assert deploy(monkeypatch, "coverage", "mi325x-tp8", "--table", str(path), "--json") == 9
    captured = capsys.readouterr()
    (report,) = json.loads(captured.out)
    assert (report["untuned_in_workload"], report["fusion"]["fused"]) == ([131072], True)
    missed = [bucket["key"]["token"] for bucket in report["keys"][0]["buckets"] if bucket["state"] == "untuned"]
    assert missed == [32768, 131072]
    assert "`deploy` tunes tables only for MXFP4" in captured.err
    path.write_text(path.read_text().replace("e4m3fnuz", "e4m3fn"))
    deploy(monkeypatch, "coverage", "mi325x-tp8", "--table", str(path), "--json")
    (report,) = json.loads(capsys.readouterr().out)
    assert {bucket["state"] for bucket in report["keys"][0]["buckets"]} == {"untuned"}
    assert deploy(monkeypatch, "build", "mi325x-tp8") != 0
    assert "does not use aiter's fused MXFP4 experts" in capsys.readouterr().err


def test_unknown_coverage_hints_at_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(monkeypatch, "coverage", "mi355x-tp4dp2", "--set", "layout.tp=4") == 0
    stdout = capsys.readouterr().out
    assert "`deploy kernels build mi355x-tp4dp2 --set layout.tp=4` builds it with at least" in stdout
    assert "shared expert: unknown: depends on the checkpoint, which is not on this host" in stdout
    assert "hint: pass a directory with its `config.json`: `--model DIR`" in stdout


def test_full_coverage_exits_zero_with_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full_table: Path
) -> None:
    assert deploy(monkeypatch, "coverage", "-p", "mi355x-tp8", "--table", str(full_table), "--json", *NEWER) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["unknown"], report["untuned_in_workload"], report["fusion"]["fused"]) == ("", [], None)
    assert [bucket["state"] for bucket in report["keys"][0]["buckets"]][-2:] == ["tuned", "fallback"]


def test_build_prints_table_path_and_derived_row_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "own.csv"
    table.write_text(f"{HEADER}\n{line(16)}\n")
    assert deploy(monkeypatch, "build", "-p", "mi355x-tp8", "--table", str(table), "--no-upstream", *NEWER) == 0
    captured = capsys.readouterr()
    assert Path(captured.out.strip()).read_text().count("\n") == 3
    assert "2 rows: 1 image, 1 derived" in captured.err
    assert "times are unmeasured" in captured.err


def test_tune_dry_run_prints_keys_and_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full_table: Path
) -> None:
    assert deploy(monkeypatch, "tune", "-p", "mi355x-tp4dp2", "--table", str(full_table), "--dry-run", *NEWER) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1 + 32
    assert "gemm_moe_tune.py -i /tuning/untuned.csv -o /tuning/tuned.csv" in captured.err


def test_kernel_miss_in_log_fails_with_strict_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log, untuned = tmp_path / "server.log", tmp_path / "untuned.csv"
    log.write_text(f"{HIT}\n{FALLBACK.replace(' 16,', ' 32,')}\n")
    assert deploy(monkeypatch, "check", str(log), "--untuned", str(untuned)) == 0
    assert "1 found in the tuned table, 1 missed" in capsys.readouterr().out
    assert untuned.read_text().splitlines()[1].startswith("32,6144,256,257,9,")
    assert deploy(monkeypatch, "check", str(log), "--strict-kernels") == 9
    assert deploy(monkeypatch, "check", str(tmp_path / "none.log")) == 2
