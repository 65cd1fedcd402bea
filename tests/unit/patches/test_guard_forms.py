"""Detection of the `rocm-cuda-runtime-guard` patch in every form of the include guard."""

import json
from pathlib import Path
from typing import Any

import apply_patches as applier
import pytest

from orchestrator.patches.ledger import manifest, read_diffs, read_ledger

LEDGER = read_ledger()
GUARD: dict[str, Any] = next(
    patch for patch in json.loads(manifest(LEDGER, read_diffs(LEDGER))) if patch["id"] == "rocm-cuda-runtime-guard"
)
BARE = "#pragma once\n\n#include <algorithm>  // for std::min\n#include <cuda_runtime.h>\n\nint x;\n"
CUDA, HIP = "#include <cuda_runtime.h>\n", "#include <hip/hip_runtime.h>\n"


def with_include(text: str) -> str:
    return BARE.replace(CUDA, text)


FORMS = {
    "unpatched": (BARE, "needed"),
    "upstream": (with_include(f"#ifndef USE_ROCM\n{CUDA}#else\n{HIP}#endif\n"), "upstream"),
    "our patch": (with_include(f"#ifdef USE_ROCM\n{HIP}#else\n{CUDA}#endif\n"), "applied"),
    "value of the macro": (with_include(f"#if !USE_ROCM\n{CUDA}#else\n{HIP}#endif\n"), "upstream"),
    "with comments": (
        with_include(f"#if !defined(USE_ROCM)  // NVIDIA\n  {CUDA}#else /* AMD */\n  {HIP}#endif\n"),
        "upstream",
    ),
    "reversed": (with_include(f"#ifdef USE_ROCM\n{CUDA}#else\n{HIP}#endif\n"), "conflict"),
    "unterminated": (with_include(f"#ifndef USE_ROCM\n{CUDA}#else\n{HIP}"), "conflict"),
    "second include": (with_include(f"#ifndef USE_ROCM\n{CUDA}#else\n{HIP}#endif\n{CUDA}"), "conflict"),
    "our patch and a second include": (with_include(f"#ifdef USE_ROCM\n{HIP}#else\n{CUDA}#endif\n{CUDA}"), "conflict"),
    "in a comment": (BARE.replace("int x", f"// #ifndef USE_ROCM\n// {HIP}int x"), "needed"),
    "in a block comment": (
        BARE.replace("\nint", f"\n/*\n#ifndef USE_ROCM\n{CUDA}#else\n{HIP}#endif\n*/\nint"),
        "needed",
    ),
    "for another macro": (with_include(f"#ifndef USE_ROCX\n{CUDA}#else\n{HIP}#endif\n"), "conflict"),
    "after #undef": (
        with_include(f"#undef USE_ROCM\n#ifndef USE_ROCM\n{CUDA}#else\n{HIP}#endif\n"),
        "conflict",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_state(tmp_path: Path, form: str) -> None:
    text, expected = FORMS[form]
    (tmp_path / "fused_metadata_copy.cuh").write_text(text)

    state, evidence = applier.state_of(GUARD, {"sglang": tmp_path})

    assert state == expected, evidence
    if state in {"needed", "conflict"}:
        assert "cuda_runtime" in "".join(evidence) or "#endif" in "".join(evidence)


@pytest.mark.parametrize("form", [form for form, (_, state) in FORMS.items() if state == "needed"])
def test_needed_patch_is_applied(tmp_path: Path, form: str) -> None:
    (tmp_path / "fused_metadata_copy.cuh").write_text(FORMS[form][0])

    applier.apply([GUARD], {"sglang": tmp_path})

    assert applier.state_of(GUARD, {"sglang": tmp_path})[0] == "applied"
