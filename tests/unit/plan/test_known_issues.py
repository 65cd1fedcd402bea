"""Blocking known issues and warnings: only reported configurations match, and the message names its source."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from plan_samples import flag, plan_of

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.plan.known_issues import blocking_issues, image_date
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, read_known_issues, render_artifacts
from orchestrator.render.scripts import server_script

SHIPPED = read_known_issues(Catalog.shipped())
REPORTS = SHIPPED.blocked


def ids(plan: Plan) -> set[str]:
    """Return the ids of the blocking issues that match the plan."""
    return {report.id for report in REPORTS if blocking_issues([report], plan)}


def on(plan: Plan, version: str) -> Plan:
    return replace(plan, engine=replace(plan.engine, version=version))


@pytest.mark.parametrize("profile", ["mi355x-tp8", "mi355x-tp4dp2", "b200-tp8", "cpu-tiny"])
def test_shipped_profiles_have_no_blocking_issue(profile: str) -> None:
    assert ids(plan_of(profile)) == set()


def test_dp_attention_on_rocm_is_blocked_for_reported_versions() -> None:
    plan = plan_of("mi355x-tp8")
    spread = replace(plan, layout=replace(plan.layout, dp=8, dp_attention=True))
    assert "dsa-dp-attention-hang" in ids(on(spread, "0.5.14"))
    assert ids(on(spread, "0.5.16")) == {"dsa-dp-attention-hang", "dp-attention-mtp-topk"}
    assert ids(on(spread, "0.5.20")) == {"dp-attention-mtp-topk"}
    assert "dsa-dp-attention-hang" not in ids(on(plan, "0.5.14"))
    cuda = replace(spread, engine=replace(spread.engine, platform="cuda"))
    assert "dsa-dp-attention-hang" not in ids(on(cuda, "0.5.14"))


def test_file_storage_with_page_size_one_warns() -> None:
    def warned(*flags: str) -> bool:
        tiers = ("flags.enable-hierarchical-cache=true", "flags.hicache-storage-backend=file", *flags)
        plan = plan_of("mi300x-qwen3-coder-tp8", *tiers)
        return any(blocking_issues([issue], plan) for issue in SHIPPED.warnings if issue.id == "one-file-a-token")

    assert warned("flags.page-size=1")
    assert not warned("flags.page-size=64")
    assert not warned("flags.page-size=1", "flags.hicache-storage-backend=mooncake")


def test_workaround_variable_prevents_known_issue() -> None:
    plan = on(plan_of("mi355x-tp8"), "0.5.15.post1")
    remaining = tuple(variable for variable in plan.env if variable.name != "SGLANG_OPT_USE_TOPK_V2")
    assert "topk-v2-without-header" in ids(replace(plan, env=remaining))


def test_known_issues_match_flag_values_and_image_dates() -> None:
    plan = plan_of("mi355x-tp8", flags=(flag("chunked-prefill-size", "131072"), flag("mem-fraction-static", "0.85")))
    assert "prefill-131072-out-of-memory" in ids(plan)
    lower = replace(plan, flags=(flag("chunked-prefill-size", "131072"), flag("mem-fraction-static", "0.80")))
    assert "prefill-131072-out-of-memory" not in ids(lower)
    fp8 = replace(plan, model=replace(plan.model, quantization="fp8"))
    old = replace(fp8, engine=replace(fp8.engine, image="lmsysorg/sglang-rocm:v0.5.13-rocm720-mi35x-20260611"))
    assert "gfx950-block-fp8-miscompiled" in ids(old)
    assert "gfx950-block-fp8-miscompiled" not in ids(fp8)
    assert image_date("lmsysorg/sglang:v0.5.16-cu130") == 0


@pytest.mark.parametrize("quantization", ["quark-mxfp4", "mxfp4"])
def test_mxfp4_has_no_kernels_before_gfx950(quantization: str) -> None:
    plan = plan_of("mi300x-tp8")
    assert ids(plan) == set()
    assert ids(replace(plan, model=replace(plan.model, quantization=quantization))) == {"mxfp4-without-gfx950"}


@pytest.mark.parametrize("profile", ["mi300x-tp8", "mi355x-tp8-current", "b200-tp8"])
def test_nvfp4_is_blocked_on_rocm(profile: str) -> None:
    plan = plan_of(profile)
    nvfp4 = replace(plan, model=replace(plan.model, quantization="nvfp4"))
    assert ids(nvfp4) - ids(plan) == (set() if profile == "b200-tp8" else {"nvfp4-on-rocm"})


def test_blocking_issue_names_source_and_override() -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8-july", overrides=["layout.dp=8", "layout.dp_attention=true"])
    (problem,) = caught.value.problems
    assert "sglang #33978" in problem.message
    assert "; confidence medium, checked 2026-11, sources of 2026-09-23)" in problem.message
    assert "allow_known_issues=[dsa-dp-attention-hang]" in problem.hint
    assert problem.location == "--set layout.dp_attention"


@pytest.mark.parametrize(
    ("location", "version", "blocked"),
    [
        ("amd/GLM-5.2-Quark-MXFP4-AttnFP8", "0.5.16", True),
        ("amd/GLM-5.2-Quark-MXFP4-AttnFP8", "0.5.18", False),
        ("amd/GLM-5.2-MXFP4", "0.5.16", False),
        ("/data/glm-5.2-attnfp8", "0.5.14", True),
    ],
)
def test_known_issue_matches_checkpoint_path(location: str, version: str, blocked: bool) -> None:
    plan = on(plan_of("mi355x-tp8"), version)
    source = replace(plan.model.checkpoint, path=location)
    assert ("attention-fp8-by-rows" in ids(replace(plan, model=replace(plan.model, checkpoint=source)))) is blocked


def test_blocking_issue_names_the_offending_key() -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=["flags.chunked-prefill-size=131072", "flags.mem-fraction-static=0.85"])
    (problem,) = caught.value.problems
    assert problem.location == "--set flags.chunked-prefill-size"


def test_allowed_issue_does_not_block() -> None:
    plan = plan_of("mi355x-tp8")
    spread = replace(plan, layout=replace(plan.layout, dp=8, dp_attention=True))
    assert blocking_issues(REPORTS, on(spread, "0.5.14"), allowed=["dsa-dp-attention-hang"]) == ()


@pytest.mark.parametrize(
    "entry",
    [
        '{id: x, summary: w, source: s, hint: h, match: {engine: "0.5"}}',
        "{id: x, summary: w, source: s, hint: h, confidence: low, checked: 2026-11, match: {dp-attention: true}}",
        "{id: x, summary: w, source: s, hint: h, match: {}}",
        "{id: x, summary: w, source: s, hint: h, confidence: mid, checked: 2026-11, match: {}}",
        "{id: x, summary: w, source: s, hint: h, confidence: low, checked: today, match: {}}",
        "{id: x, summary: w, hint: h, match: {}}",
        "{id: x, summary: w, source: s, instead: i, match: {}}",
    ],
)
def test_malformed_known_issue_is_rejected_with_its_line(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "profiles/known_issues/blocked.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"blocked:\n\n  - {entry}\n")
    with pytest.raises(ProfileError) as caught:
        read_known_issues(Catalog((tmp_path,)))
    assert "blocked.0." in caught.value.problems[0].message
    assert caught.value.problems[0].location == "profiles/known_issues/blocked.yaml:3"


def test_model_name_condition_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "profiles/known_issues/own.yaml"
    path.parent.mkdir(parents=True)
    entry = "id: x, summary: w, source: s 1, hint: h, confidence: low, checked: 2026-11, match: {models: [glm-5*]}"
    path.write_text(f"warnings: [{{{entry}}}]\n")
    with pytest.raises(ProfileError) as caught:
        read_known_issues(Catalog((tmp_path,)))
    assert "did you mean `architectures`?" in caught.value.problems[0].hint


def test_every_blocking_issue_has_source_and_condition() -> None:
    assert len({report.id for report in REPORTS}) == len(REPORTS)
    assert all(report.match.model_fields_set and re.search(r"\d", report.source) for report in REPORTS)


@pytest.mark.parametrize("chunk", ["131072", "131_072", "+131072", "0131072", "262144"])
@pytest.mark.parametrize("fraction", [".85", "8.5e-1", "0.850", "0.9"])
def test_blocked_value_matches_in_any_notation(chunk: str, fraction: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=[f"flags.chunked-prefill-size={chunk}", f"flags.mem-fraction-static={fraction}"])
    assert any("run out of memory" in problem.message for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("chunk", "fraction"), [("131072", "0.80"), ("131072", ".8"), ("32768", "0.85"), ("-1", "0.85")]
)
def test_value_outside_reported_range_is_planned(chunk: str, fraction: str) -> None:
    load("mi355x-tp8", overrides=[f"flags.chunked-prefill-size={chunk}", f"flags.mem-fraction-static={fraction}"])


# Warnings for the layout and engine of the default profiles (test_known_issue_rules.py).
DEFAULT_WARNINGS = {"draft-ranks-diverge", "graph-capture-race", "indexer-logits-2-gib-unknown"}


def reported(profile: str, *overrides: str) -> set[str]:
    return {warning.id for warning in load(profile, overrides=overrides).plan.warnings}


def test_published_profiles_keep_fusion_and_warn_of_hangs() -> None:
    assert (
        reported("mi355x-tp8")
        == reported("mi355x-tp4dp2")
        == {"custom-all-reduce-hang", "speculation-is-greedy"} | DEFAULT_WARNINGS
    )
    assert reported("b200-tp8") == reported("cpu-tiny") == set()


def test_contradictory_settings_produce_warnings() -> None:
    assert reported("mi355x-tp8", "flags.disable-custom-all-reduce=true") == {
        "fusion-without-custom-all-reduce", "speculation-is-greedy", *DEFAULT_WARNINGS,
    }  # fmt: skip
    for off in ("false", "False", "0"):
        assert "fusion-without-aiter" in reported("mi355x-tp8", f"env.SGLANG_USE_AITER_AR={off}")
    assert "fusion-without-aiter" not in reported("mi355x-tp8", "env.SGLANG_USE_AITER_AR=true")
    two = ("flags.enable-pdmux=true", "flags.disable-custom-all-reduce=true")
    assert "custom-all-reduce-two-streams" in reported("mi355x-tp8", two[0])
    assert "custom-all-reduce-two-streams" not in reported("mi355x-tp8", *two)
    both = ("flags.disable-custom-all-reduce=true", "flags.enable-aiter-allreduce-fusion=null")
    assert reported("mi355x-tp8", *both) == {"speculation-is-greedy"} | DEFAULT_WARNINGS


def test_greedy_speculation_warns_only_before_0_5_20() -> None:
    newer = ("engine.version=0.5.23", "engine.image=lmsysorg/sglang:v0.5.23-rocm720-mi35x")
    assert "speculation-is-greedy" in reported("mi355x-tp8-july")
    assert "speculation-is-greedy" not in reported("mi355x-tp8", *newer)
    no_drafts = [
        f"flags.speculative-{name}=null" for name in ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
    ]
    assert reported("mi355x-tp8", *no_drafts) == DEFAULT_WARNINGS - {"draft-ranks-diverge"}


def test_warning_appears_in_rendered_script() -> None:
    script = server_script(render_artifacts(load("mi355x-tp8").plan))
    assert "# warning speculation-is-greedy: requests are decoded greedily" in script
    assert "# hint: if the server hangs, `--set flags.disable-custom-all-reduce=true`" in script
    assert max(map(len, script.splitlines())) <= 140


def test_every_warning_has_source_condition_and_hint() -> None:
    assert len({warning.id for warning in SHIPPED.warnings}) == len(SHIPPED.warnings)
    assert all(warning.match.model_fields_set for warning in SHIPPED.warnings)
    assert all(re.search(r"\d", warning.source) and warning.hint for warning in SHIPPED.warnings)
