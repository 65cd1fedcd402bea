"""Tests of the states of all patches in real releases of sglang, and of the guard patch in the real file."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import read, unpack, wheel

from orchestrator.images.patch_check import SourceChecker
from orchestrator.images.sources import program_paths
from orchestrator.patches.ledger import manifest

pytestmark = pytest.mark.wheels

CHECKER = SourceChecker.of_ledger()
LEDGER, DIFFS = CHECKER.patches, CHECKER.diffs

NEEDED, PRESENT, ABSENT = "needed", "upstream", "not applicable"
# version: (guard, exclude list, top-k v2, broadcast). The wheels lack aiter: its table is never applicable.
STATES = {
    "0.5.10": (NEEDED, NEEDED, ABSENT, ABSENT),
    "0.5.12.post1": (NEEDED, NEEDED, ABSENT, ABSENT),
    "0.5.13.post1": (NEEDED, NEEDED, ABSENT, ABSENT),
    "0.5.14": (NEEDED, NEEDED, ABSENT, NEEDED),
    "0.5.15.post1": (PRESENT, NEEDED, NEEDED, NEEDED),
    "0.5.16": (PRESENT, PRESENT, PRESENT, NEEDED),
    "0.5.17": (PRESENT, PRESENT, PRESENT, NEEDED),
    "0.5.18": (PRESENT, PRESENT, PRESENT, PRESENT),
    "0.5.19": (PRESENT, PRESENT, PRESENT, PRESENT),
    "0.5.20": (PRESENT, PRESENT, PRESENT, PRESENT),
    "0.5.21": (PRESENT, PRESENT, PRESENT, PRESENT),
    "0.5.22": (PRESENT, PRESENT, PRESENT, PRESENT),
    "0.5.23": (PRESENT, PRESENT, PRESENT, PRESENT),
}
CUH = "jit_kernel/csrc/elementwise/fused_metadata_copy.cuh"


@pytest.mark.parametrize("version", STATES)
def test_patch_states_of_each_release(version: str) -> None:
    states = {state.id: state.state for state in CHECKER.check_wheel(wheel(version))}

    guard, exclude, topk, broadcast = STATES[version]
    assert states == {
        "aiter-fp4-moe-table": ABSENT,
        "dsa-topk-v2-off": topk,
        "eagle-verify-broadcast": broadcast,
        "mtp-shared-expert-exclude": exclude,
        "rocm-cuda-runtime-guard": guard,
    }


def test_evidence_names_file_and_line() -> None:
    evidence = {state.id: state.evidence for state in CHECKER.check_wheel(wheel("0.5.14"))}

    assert evidence["rocm-cuda-runtime-guard"] == (f"{CUH}:38: #include <cuda_runtime.h>",)
    assert evidence["mtp-shared-expert-exclude"] == (
        "srt/configs/model_config.py:531: self.hf_config.architectures[0] = 'DeepseekV3ForCausalLMNextN'",
    )


@pytest.mark.parametrize(
    ("version", "evidence"),
    [
        ("0.5.16", "srt/server_args.py:4520: envs.SGLANG_OPT_USE_TOPK_V2.set(False)"),
        ("0.5.19", "topk_impl.cuh:31: #include <cooperative_groups.h> (left out)"),
        ("0.5.20", "topk_impl.cuh:31: #include <cooperative_groups.h> (left out)"),
        ("0.5.23", "topk_impl.cuh:41: #include <cooperative_groups.h> (left out)"),
    ],
)
def test_top_k_kernel_evidence_is_the_deciding_line(version: str, evidence: str) -> None:
    """0.5.20 turns the kernel off for DSA on HIP, and on again for GLM eight lines below: the kernel compiles."""
    (state,) = (state for state in CHECKER.check_wheel(wheel(version)) if state.id == "dsa-topk-v2-off")

    assert len(state.evidence) == 1
    assert state.evidence[0].endswith(evidence)


def test_patch_state_survives_reformatting(tmp_path: Path) -> None:
    package = unpack("0.5.14", tmp_path, below="srt/configs/model_config.py") / "sglang"
    file = package / "srt/configs/model_config.py"
    text = ast.unparse(ast.parse(file.read_text()))
    file.write_text(text.replace("'GlmMoeDsaForCausalLM'", '"GlmMoeDsaForCausalLM"'))  # mixed quotes

    states = {state.id: state.state for state in CHECKER.check_directory(tmp_path)}

    assert states["mtp-shared-expert-exclude"] == NEEDED


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    """Return the kernels of 0.5.14 with the guard, applied by git instead of our own program."""
    package = unpack("0.5.14", tmp_path, below="jit_kernel/csrc/") / "sglang"
    subprocess.run(["git", "apply", "-"], cwd=package, input=DIFFS["rocm-cuda-runtime-guard"], text=True, check=True)
    return package


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("define", ["-DUSE_ROCM", "-UUSE_ROCM"])
def test_patched_file_preprocesses_like_upstream_file(patched: Path, define: str) -> None:
    patched_text, upstream = (patched / CUH).read_text(), read("0.5.15.post1", CUH)

    assert preprocessed(patched_text, define) == preprocessed(upstream, define)
    assert ("hip/hip_runtime.h" in preprocessed(patched_text, define)) == (define == "-DUSE_ROCM")


def preprocessed(text: str, define: str) -> str:
    """Return the preprocessor's output for a file, without following its includes."""
    text = re.sub(r"//.*|^#pragma once", "", text, flags=re.MULTILINE)
    without_includes = re.sub(r"^#include (.*)$", r"INCLUDED(\1)", text, flags=re.MULTILINE)
    argv = ["g++", "-E", "-P", "-x", "c++", define, "-"]
    return subprocess.run(argv, input=without_includes, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_only_unpatched_file_includes_cuda_on_rocm(patched: Path, tmp_path: Path) -> None:
    unpatched = tmp_path / "unpatched.cuh"
    unpatched.write_text(read("0.5.14", CUH))

    assert "cuda_runtime.h" in dependencies(unpatched)
    assert "cuda_runtime.h" not in dependencies(patched / CUH)
    assert "hip/hip_runtime.h" in dependencies(patched / CUH)


def dependencies(file: Path) -> str:
    """Return the names of the headers that a file includes on ROCm, also of headers that this machine lacks."""
    argv = ["g++", "-x", "c++", "-std=c++20", "-DUSE_ROCM", "-M", "-MG", str(file)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_patch_applier_output_matches_git(patched: Path, tmp_path: Path) -> None:
    again = unpack("0.5.14", tmp_path / "again", below="jit_kernel/csrc/") / "sglang"
    program = "import sys, pathlib, apply_patches as a; a.apply_diff(pathlib.Path(sys.argv[1]), sys.stdin.read())"

    subprocess.run(
        [sys.executable, "-B", "-c", program, again],
        cwd=program_paths()[0].parent,
        input=DIFFS["rocm-cuda-runtime-guard"],
        text=True,
        check=True,
    )

    assert (again / CUH).read_bytes() == (patched / CUH).read_bytes()


def test_patch_program_needs_only_standard_library(tmp_path: Path) -> None:
    """`-E -S` limits imports to the standard library and the program's folder, as in an image."""
    package = unpack("0.5.14", tmp_path, below="jit_kernel/csrc/") / "sglang"
    argv = [
        sys.executable,
        "-E",
        "-S",
        str(program_paths()[0]),
        "check",
        "--manifest",
        "-",
        "--root",
        f"sglang={package}",
    ]

    done = subprocess.run(argv, input=manifest(LEDGER, DIFFS), capture_output=True, text=True, check=True)

    assert len(json.loads(done.stdout)) == len(LEDGER)
