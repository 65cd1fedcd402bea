"""Preflight checks of the engine's interpreter: missing, without torch, with another sglang, without nvcc."""

import json
from collections.abc import Sequence

import pytest
from host_samples import runner_of, sections
from plan_samples import plan_of

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.checks import preflight
from orchestrator.hosts.context import HostAccess
from orchestrator.hosts.report import Finding, Level
from orchestrator.runtimes import runtime_class

H200 = {
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "hip": None,
    "sglang": "0.5.16",
    "sglang-kernel": "0.4.5",
}


def findings(
    completed: CompletedProgram | None, *, nvcc: str = "/usr/local/cuda/bin/nvcc", **changed: str
) -> list[Finding]:
    """Return the findings for `h200-tiny` on a recorded H200 with this output of the interpreter (None: unbuilt)."""
    recorded, plan = runner_of(sections("h200-idle", **changed)), plan_of("h200-tiny", "hardware.gpus=1")

    def runner(argv: Sequence[str]) -> CompletedProgram:
        if argv[0] == "/opt/engine/python":
            assert completed is not None
            return completed
        if "nvcc" in argv[-1]:
            return CompletedProgram(argv=tuple(argv), code=0 if nvcc else 1, stdout=nvcc, stderr="")
        return recorded(argv)

    access = HostAccess(
        runner=runner,
        environ={},
        spaces=(),
        checkpoint=None,
        in_container=False,
        interpreter="/opt/engine/python" if completed else None,
    )
    return list(preflight(plan, access, runtime_class("process").checks).findings)


def printed(**versions: str | None) -> CompletedProgram:
    return CompletedProgram(argv=(), code=0, stdout=json.dumps({**H200, **versions}), stderr="")


def row(all_findings: list[Finding], check: str) -> Finding:
    (finding,) = (item for item in all_findings if item.check == check)
    return finding


def test_suitable_interpreter_is_reported_with_versions() -> None:
    all_findings = findings(printed())
    assert row(all_findings, "interpreter").value == (
        "python 3.12.3, torch 2.11.0+cu130, cuda 13.0, sglang 0.5.16, sglang-kernel 0.4.5"
    )
    assert {row(all_findings, check).level for check in ("interpreter", "torch", "nvcc", "gpus")} == {Level.INFO}
    assert row(all_findings, "gpus").value == "1 x NVIDIA H200 by nvidia-smi"


@pytest.mark.parametrize(
    ("completed", "check", "message"),
    [
        (
            CompletedProgram(argv=(), code=127, stdout="", stderr="no `python`"),
            "interpreter",
            "does not run: no `python`",
        ),
        (
            CompletedProgram(argv=(), code=0, stdout="", stderr=""),
            "interpreter",
            "`/opt/engine/python` is not a Python",
        ),
        (CompletedProgram(argv=(), code=0, stdout="[1]\n", stderr=""), "interpreter", "is not a Python: [1]"),
        (printed(sglang=None), "interpreter", "torch 2.11.0+cu130"),
        (printed(sglang="0.5.14"), "interpreter", "sglang 0.5.14"),
        (printed(torch=None, cuda=None), "torch", "none"),
        (printed(torch="2.13.0+cpu", cuda=None), "torch", "torch 2.13.0+cpu, without CUDA"),
        (printed(torch="2.12.0+cu140", cuda="14.0"), "torch", "torch 2.12.0+cu140 for CUDA 14.0"),
    ],
    ids=[
        "missing",
        "no output",
        "not a Python",
        "no sglang",
        "another sglang",
        "no torch",
        "CPU-only torch",
        "CUDA newer than the driver",
    ],
)
def test_unsuitable_interpreter_fails(completed: CompletedProgram, check: str, message: str) -> None:
    finding = row(findings(completed), check)
    assert finding.level is Level.FAIL
    assert message in finding.value
    assert finding.hint


def test_missing_nvcc_is_a_warning() -> None:
    assert row(findings(printed(), nvcc=""), "nvcc").level is Level.WARN


def test_missing_interpreter_is_built_by_up() -> None:
    assert row(findings(None), "interpreter").value == "built by `up`"
