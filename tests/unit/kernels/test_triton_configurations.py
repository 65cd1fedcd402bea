"""Test the tuned Triton configurations in logs of sglang on CUDA; the first log is from an H200."""

from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import KernelsError
from orchestrator.core.logs.lines import LogTail
from orchestrator.kernels.plan_table import kernel_gate
from orchestrator.kernels.triton import TritonReport, triton_report
from orchestrator.runs.run_dir import RunDir

H200_LOG = Path(__file__).parents[1] / "engine/logs/h200-0.5.16-mtp-start.log"
MISSING = "E=33,N=1024,device_name=NVIDIA_H200.json"
CONFIGS = "/opt/sglang/configs"
FOUND = f"[2026-11-21 17:46:57 TP0] Using MoE kernel config from {CONFIGS}/triton_3_6_0/{MISSING}."
OLDER = (
    f"[2026-11-21 17:46:57 TP1] Config file not found at {CONFIGS}/triton_3_6_0/{MISSING}. Fallback to triton version "
    f"3.5.1 and use MoE kernel config from {CONFIGS}/triton_3_5_1/{MISSING}. Performance might be sub-optimal!"
)


def test_missing_required_configuration_is_reported_once() -> None:
    report = triton_report(LogTail(H200_LOG)())
    assert [Path(path).name for path in report.misses] == [MISSING]
    assert report.summary.splitlines() == [
        "fused MoE configurations: 0 found, 1 missing",
        f"  missing: {MISSING}",
    ]


def test_configurations_for_another_triton_are_distinguished() -> None:
    report = triton_report([FOUND, FOUND.replace("TP0", "TP1"), OLDER])
    found, older = f"{CONFIGS}/triton_3_6_0/{MISSING}", f"{CONFIGS}/triton_3_5_1/{MISSING}"
    assert report == TritonReport(hits=(found,), older=(older,), misses=())
    assert report.summary.endswith(f"tuned for another Triton: {MISSING}")
    assert triton_report(["Deterministic inference is enabled, using default MoE kernel config."]).summary == (
        "fused MoE configurations: no lookup found in the log"
    )


def test_nvidia_kernel_gate_fails_only_in_strict_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, plan = RunDir(tmp_path), plan_of("b200-tp8")
    kernel_gate(LogTail(H200_LOG)(), plan=plan, run=run, strict=False)
    stderr = capsys.readouterr().err
    assert f"missing: {MISSING}" in stderr
    assert "tuning_fused_moe_triton.py" in stderr
    assert [Path(str(path)).name for path in run.read("kernels.json")["misses"]] == [MISSING]  # type: ignore[attr-defined]
    with pytest.raises(KernelsError, match=MISSING):
        kernel_gate(LogTail(H200_LOG)(), plan=plan, run=run, strict=True)
    kernel_gate([FOUND], plan=plan, run=run, strict=True)
