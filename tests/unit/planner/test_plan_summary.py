"""The plan summary of `deploy show`, which fits on one screen."""

from pathlib import Path

import pytest

from orchestrator.core.paths import Home
from orchestrator.images.config import ImageConfig
from orchestrator.planner.planning import load, profile_names
from orchestrator.planner.summary import plan_summary

CAST = "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16"


def rows(text: str) -> dict[str, str]:
    """Return the rows of a summary by label, unwrapped; of rows with the same label, the last one."""
    result: dict[str, str] = {}
    label = ""
    for line in text.splitlines():
        label = line[:12].strip() or label
        result[label] = line[12:] if line[:12].strip() else f"{result[label]} {line[12:]}"
    return result


def summary(profile: str, home: Path, *overrides: str) -> dict[str, str]:
    loaded = load(profile, overrides=overrides)
    return rows(plan_summary(loaded.plan, Home(home), workload="wafer-20k-1k: SLO: TTFT p95 at most 5 s"))


@pytest.mark.parametrize("profile", profile_names())
def test_summary_of_every_profile_fits_on_one_screen(profile: str, tmp_path: Path) -> None:
    loaded = load(profile)
    lines = plan_summary(loaded.plan, Home(tmp_path), workload="a workload").splitlines()
    assert max(map(len, lines)) <= 80
    main_lines = next(
        (number for number, line in enumerate(lines) if line.startswith(("warning ", "correctness ", "determinism "))),
        len(lines),
    )
    longer = loaded.plan.transfer or any(line.startswith(("missing ", "derived ")) for line in lines)
    assert main_lines <= (42 if longer else 38)
    answers = (*loaded.plan.wrong_answers, *loaded.plan.nondeterministic)
    assert len(lines) - main_lines <= 7 * len(loaded.plan.warnings) + 4 * len(answers) + 1
    for flag in loaded.plan.flags:
        assert any(" ".join(flag.argv) in line for line in lines), flag


def test_summary_contains_every_section(tmp_path: Path) -> None:
    result = summary("mi355x-tp8", tmp_path)
    assert result["model"].startswith("glm-5.2-mxfp4, served as `glm-5.2`: quark-mxfp4, 438.0 GB, 1,048,576 tokens")
    assert result["checkpoint"] == "hub amd/GLM-5.2-MXFP4, revision 386bd0e4"
    assert result["engine"] == "sglang-0.5.16-rocm: sglang 0.5.16 for rocm, aiter 9127c94a18e4"
    assert result["image"].startswith(
        "lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260728, patched its environment variables are"
    )
    assert result["hardware"] == "mi355x: 8 x gfx950, 288 GiB each; uses GPU 0-7"
    assert result["parallelism"] == "tp 8, dp 1, ep 1; 1 replica"
    assert result["server"] == "docker runtime, listens on 127.0.0.1, port 30000, no API key"
    assert result["workload"].endswith("SLO: TTFT p95 at most 5 s")
    assert result["timeouts"].startswith(
        "start without progress 30 min, stop 5 min, unhealthy 5 min; at most 3 restarts"
    )
    assert result["patches"].startswith("needed: aiter-fp4-moe-table (file), eagle-verify-broadcast (diff); not needed")
    assert "16 tuned" in result["kernels"]
    assert result["determinism"].startswith("aiter-atomic-moe: aiter's fused MoE adds expert outputs in arrival order")
    assert result["determinism"].endswith("(confidence high; checked 2026-11)")
    assert result["digest"] == load("mi355x-tp8").plan.digest[:12]


def test_answer_issues_have_confidence_and_date(tmp_path: Path) -> None:
    plan = load("mi355x-tp4dp2").plan
    text = " ".join(plan_summary(plan, Home(tmp_path), workload="w").split())
    for issue in (*plan.wrong_answers, *plan.nondeterministic):
        issue_text = f"{issue.id}: {issue.summary} (confidence {issue.confidence}; checked {issue.checked})"
        assert " ".join(issue_text.split()) in text
    assert "router-bias-bf16: " in text


def test_summary_of_replicas_with_api_key(tmp_path: Path) -> None:
    result = summary("mi355x-tp4x2", tmp_path, "server.api_key_env=OWL_KEY")
    assert result["parallelism"] == "tp 4, dp 1, ep 1; 2 replicas behind a gateway"
    assert result["server"].endswith("the API key of $OWL_KEY")


def test_flag_that_a_role_omits_is_shown(tmp_path: Path) -> None:
    result = summary("cpu-tiny-1p1d", tmp_path, "flags.page-size=1", "layout.decode.flags.page-size=null")
    assert result["decode"].endswith(", without --page-size")
    assert "without" not in result["prefill"]


def test_summary_omits_absent_sections(tmp_path: Path) -> None:
    result = summary("h200-glm-mtp", tmp_path, "model.questions=null")
    assert result["environment"] == "sglang-cuda-0.5.16.txt"
    assert result["patches"] == "none"
    assert "has no questions" in result["smoke test"]
    assert not {"image", "kernels", "warning"} & result.keys()


def test_warnings_have_confidence_and_date(tmp_path: Path) -> None:
    lines = plan_summary(load("mi355x-tp8").plan, Home(tmp_path)).splitlines()
    assert "  basis     confidence medium; checked 2026-11, sources of 2026-09-23" in lines  # draft-ranks-diverge
    assert "  basis     confidence high; checked 2026-11" in lines  # speculation-is-greedy


def test_summary_contains_warnings_with_hints(tmp_path: Path) -> None:
    plan = load("mi355x-tp8", overrides=[f"env.{CAST}=1"]).plan
    image = ImageConfig(reference="image", digest="", env={"ROCM_QUICK_REDUCE_QUANTIZATION": "INT8"}, labels={})
    text = plan_summary(plan, Home(tmp_path), image=image)
    assert text.count("\nwarning ") == text.count("\n  hint ") == len(plan.warnings) + 1
    assert "it sets ROCM_QUICK_REDUCE_QUANTIZATION=INT8" in rows(text)["image"]


def test_summary_wraps_in_narrow_terminal(tmp_path: Path) -> None:
    text = plan_summary(load("cpu-tiny").plan, Home(tmp_path), width=50)
    assert max(map(len, text.splitlines())) <= 50


def test_servers_on_separate_nodes_are_counted_in_gpus(tmp_path: Path) -> None:
    cluster = ("runtime=kubernetes", "kubernetes.weights.pvc=models", "kubernetes.image_pull_policy=Never")
    result = summary("mi355x-1p1d", tmp_path, *cluster, "layout.tp=8", "server.api_key_env=KEY")
    assert result["hardware"].endswith("uses 16 GPUs")
