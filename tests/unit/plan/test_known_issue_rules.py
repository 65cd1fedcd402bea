"""Each known issue: a plan that it matches, and changes that end the match."""

from dataclasses import replace

import pytest
from plan_flags import flag_of
from plan_samples import flag, plan_of

from orchestrator.core.catalog import Catalog
from orchestrator.core.origin import Origin
from orchestrator.plan.known_issues import IssueConditions, KnownIssue, matches, matching_issues
from orchestrator.plan.plan import EnvVar, Plan
from orchestrator.planner.planning import load, read_known_issues

SHIPPED = read_known_issues(Catalog.shipped())
ALL = (*SHIPPED.blocked, *SHIPPED.warnings, *SHIPPED.wrong_answers, *SHIPPED.nondeterministic)
BASE = plan_of("mi355x-tp4dp2")  # rocm, gfx950, glm-5.2-mxfp4, TP4×DP2, EAGLE 5/1/6, chunks of 32768

HICACHE = {"flags": {"enable-hierarchical-cache": None}}
DECODE = {"flags": {"disaggregation-mode": "decode"}}
OVERRIDE = {"json-model-override-args": '{"index_share_for_mtp_iteration": false}'}
IMAGE = "lmsysorg/sglang-rocm:v0.5.{}"


def as_own(plan: Plan) -> Plan:
    """Return the plan with its model under a name that the user chose."""
    return replace(plan, model=replace(plan.model, name="house", served_name="house"))


def changed(plan: Plan, **changes: object) -> Plan:
    """Return the plan with parts replaced: `absent` removes a flag, and `model` names a profile."""
    for name, value in changes.items():
        match name:
            case "version" | "image" | "platform":
                plan = replace(plan, engine=replace(plan.engine, **{name: value}))
            case "arch":
                plan = replace(plan, hardware=replace(plan.hardware, arch=value))
            case "model":
                plan = replace(plan, model=as_own(plan_of(str(value))).model)
            case "quantization":
                plan = replace(plan, model=replace(plan.model, quantization=value))
            case "tp" | "dp_attention":
                plan = replace(plan, layout=replace(plan.layout, **{name: value}))
            case "flags":
                remaining = tuple(setting for setting in plan.flags if setting.name not in value)  # type: ignore[operator]
                added = tuple(flag(key, setting) for key, setting in value.items() if setting != "absent")  # type: ignore[attr-defined]
                plan = replace(plan, flags=(*remaining, *added))
            case "env":
                added_env = tuple(
                    EnvVar(name=key, value=setting, origin=Origin.USER, source="")
                    for key, setting in value.items()  # type: ignore[attr-defined]
                )
                plan = replace(plan, env=(*plan.env, *added_env))
            case "patches":
                plan = replace(plan, patches=value)
    return plan


CASES = (
    # id, changes of BASE that make it match, and further changes that each end the match
    ("dsa-dp-attention-hang", {"version": "0.5.16", "dp_attention": True}, [{"version": "0.5.17"}, {"arch": "gfx942"}]),
    ("dsa-dp-attention-hang-unfixed", {"version": "0.5.20", "dp_attention": True}, [{"version": "0.5.16"}]),
    ("dp-attention-mtp-topk", {"version": "0.5.23", "dp_attention": True}, [{"version": "0.5.14"}]),
    ("pd-decode-dp-attention-mtp", {"version": "0.5.23", "dp_attention": True, **DECODE},
     [{"version": "0.5.14"}, {"dp_attention": False}, {"flags": {"disaggregation-mode": "prefill"}}]),
    ("pd-decode-graph-choice", {"version": "0.5.23", "dp_attention": True, "platform": "cuda", **DECODE},
     [{"version": "0.5.15"}, {"flags": OVERRIDE}]),
    ("hierarchical-cache-faults", {"version": "0.5.19", **HICACHE},
     [{"version": "0.5.20"}, {"arch": "gfx942"}, {"flags": {"hicache-io-backend": "direct"}},
      {"flags": {"hicache-mem-layout": "page_first_direct"}}]),
    ("hierarchical-cache-faults", {"version": "0.5.14", "flags": {**HICACHE["flags"], "hicache-io-backend": "kernel"}},
     [{"flags": {"enable-hierarchical-cache": "absent"}}]),
    ("hierarchical-cache-write-back", {"version": "0.5.16", "arch": "gfx942", **HICACHE},
     [{"version": "0.5.18"}, {"version": "0.5.15.post1"}, {"flags": {"hicache-io-backend": "direct"}}]),
    ("indexer-logits-2-gib", {"version": "0.5.18"},
     [{"version": "0.5.19"}, {"version": "0.5.16"}, {"arch": "gfx942"}, {"flags": {"chunked-prefill-size": "4096"}},
      {"flags": {"context-length": "23170"}}, {"flags": {"chunked-prefill-size": "8192", "context-length": "65535"}},
      {"flags": {"chunked-prefill-size": "16384", "context-length": "32767"}},
      {"env": {"SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION": "0.034"}}]),
    ("indexer-logits-2-gib", {"version": "0.5.17", "flags": {"chunked-prefill-size": "-1"}},
     [{"model": "mi355x-qwen3-coder-tp8"}]),
    ("indexer-logits-2-gib", {"version": "0.5.17", "flags": {"chunked-prefill-size": "absent"}},
     [{"platform": "cuda"}, {"flags": {"context-length": "32767"}}]),
    ("indexer-logits-2-gib",
     {"version": "0.5.18", "flags": {"chunked-prefill-size": "8192", "context-length": "65536"}},
     [{"flags": {"context-length": "65535"}}, {"flags": {"chunked-prefill-size": "4096"}}]),
    ("indexer-logits-2-gib",
     {"version": "0.5.18", "flags": {"chunked-prefill-size": "16384", "context-length": "32768"}},
     [{"flags": {"context-length": "32767"}}]),
    ("indexer-logits-2-gib",
     {"version": "0.5.18", "flags": {"chunked-prefill-size": "32768", "context-length": "23171"}},
     [{"flags": {"chunked-prefill-size": "16384"}}]),
    ("indexer-logits-2-gib-unknown", {"version": "0.5.14"},
     [{"version": "0.5.19"}, {"flags": {"chunked-prefill-size": "4096"}}]),
    ("draft-extend-without-lengths", {"image": IMAGE.format("14-rocm720-mi35x-20260628")},
     [{"image": IMAGE.format("14-rocm720-mi35x-20260626")}, {"flags": {"disable-overlap-schedule": None}}]),
    ("draft-extend-without-lengths-july", {"image": IMAGE.format("14-rocm720-mi35x-20260710")},
     [{"image": IMAGE.format("16-rocm720-mi35x-20260728")}]),
    ("expandable-segments", {"env": {"PYTORCH_HIP_ALLOC_CONF": "a:1,expandable_segments:True"}},
     [{"version": "0.5.18"}, {"tp": 1}, {"flags": {"disable-custom-all-reduce": None}}]),
    ("expandable-segments", {"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}, [{"platform": "cuda"}]),
    ("blockscale-gemm-segfault", {"quantization": "fp8", "image": IMAGE.format("13.post1-rocm720-mi35x-20260618")},
     [{"image": IMAGE.format("13.post1-rocm720-mi35x-20260710")}, {"quantization": "bf16"}]),
    ("qwen-fp8-mi300x-images",
     {"model": "mi300x-qwen3.5-397b-tp8", "quantization": "fp8", "image": IMAGE.format("19-rocm720-mi30x-20260908")},
     [{"image": IMAGE.format("19-rocm720-mi30x-20260916")}]),
    ("dp-attention-lds-gfx942", {"arch": "gfx942", "dp_attention": True, "flags": {"kv-cache-dtype": "bfloat16"}},
     [{"flags": {"kv-cache-dtype": "fp8_e4m3"}}, {"version": "0.5.23"}]),
    ("kpool-mtp-cuda-only", {"version": "0.5.20", "model": "mi355x-glm-5.3-flash-tp4"},
     [{"version": "0.5.21"}, {"flags": {"speculative-algorithm": "absent"}}]),
    ("mooncake-hip-ipc", DECODE,
     [{"env": {"MC_DISABLE_HIP": "1"}}, {"flags": {"disaggregation-transfer-backend": "mori"}}]),
    ("mooncake-early-chunk",
     {"flags": {"disaggregation-mode": "prefill", "disaggregation-transfer-backend": "mooncake"}},
     [{"flags": {"disaggregation-transfer-backend": "mori"}}, {"flags": {"disaggregation-mode": "null"}}]),
    ("nixl-on-ionic", {"flags": {"disaggregation-transfer-backend": "nixl"}}, [{"platform": "cuda"}]),
    ("distant-nics", DECODE, [{"flags": {"disaggregation-ib-device": "{}"}}]),
    ("draft-ranks-diverge", {"version": "0.5.23"},
     [{"flags": {"speculative-num-steps": "1"}}, {"tp": 1}, {"flags": {"speculative-algorithm": "DSPARK"}}]),
    ("draft-ranks-diverge", {"flags": {"speculative-num-steps": "absent"}}, [{"platform": "cuda"}]),
    ("verify-ranks-diverge", {"version": "0.5.17", "patches": ()}, [{"version": "0.5.18"}, {"patches": BASE.patches}]),
    ("mlp-sync-hang", {"platform": "cuda", "tp": 16, "dp_attention": True}, [{"tp": 8}]),
    ("graph-capture-race", {"image": IMAGE.format("20-rocm720-mi35x-20260920")},
     [{"image": IMAGE.format("20-rocm724-mi35x")}, {"image": IMAGE.format("20-rocm10-mi35x-20260920")}, {"tp": 1},
      {"flags": {"cuda-graph-backend-decode": "disabled"}}]),
    ("cold-kernel-cache", {"flags": {"watchdog-timeout": "absent"}},
     [{"flags": {"watchdog-timeout": "900"}}, {"env": {"SGLANG_USE_AITER": "0"}}]),
    ("cold-kernel-cache", {"flags": {"watchdog-timeout": "300"}}, [{"platform": "cuda"}]),
    ("lora-align-rebuilt", {"flags": {"lora-paths": "a=/b"}}, [{"flags": {"lora-paths": "absent"}}]),
    ("kpool-logits-2-gib", {"version": "0.5.20", "model": "mi355x-glm-5.3-flash-tp4"},
     [{"flags": {"context-length": "262144", "chunked-prefill-size": "8192"}}]),
    ("kpool-logits-2-gib",
     {"version": "0.5.20", "model": "mi355x-glm-5.3-flash-tp4",
      "flags": {"context-length": "262144", "chunked-prefill-size": "16384"}},
     [{"flags": {"context-length": "131072"}}]),
    ("mixed-load-gpu-fault", {"version": "0.5.18"}, [{"version": "0.5.16"}, {"flags": OVERRIDE}]),
    ("qwen-aiter-attention-fault", {"model": "mi355x-qwen3.5-397b-tp4"}, [{"flags": {"attention-backend": "triton"}}]),
    ("custom-all-reduce-hang", {}, [{"tp": 1}, {"flags": {"disable-custom-all-reduce": None}}]),
    ("mi300x-overlap-segfault", {"model": "mi300x-glm-5.3-tp8", "arch": "gfx942", "version": "0.5.18"},
     [{"version": "0.5.19"}]),
    ("mori-small-dispatch",
     {"flags": {"moe-a2a-backend": "mori"}, "env": {"SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "64"}},
     [{"flags": {"moe-a2a-backend": "deepep"}}]),
    ("block-fp8-moe-fault", {"arch": "gfx942", "quantization": "fp8"}, [{"quantization": "bf16"}]),
    ("one-stage-moe-fault", {"model": "mi300x-glm-5.3-flash-tp8", "quantization": "fp8"},
     [{"flags": {"moe-runner-backend": "triton"}}]),
    ("kpool-long-chunk-fault", {"model": "mi355x-glm-5.3-flash-tp4"}, [{"flags": {"chunked-prefill-size": "8192"}}]),
    ("top-k-sampling-fault", {"model": "mi355x-kimi-k2.7-tp4", "image": IMAGE.format("20-rocm724-mi35x")},
     [{"model": "mi355x-tp8"}]),
    ("router-bias-bf16", {"version": "0.5.19"}, [{"version": "0.5.20"}, {"quantization": "bf16"}]),
)  # fmt: skip


def ids(plan: Plan) -> set[str]:
    return {issue.id for issue in matching_issues(ALL, plan)}


@pytest.mark.parametrize(("name", "settings", "end_match"), CASES, ids=[name for name, _, _ in CASES])
def test_known_issue_matches_only_reported_conditions(name: str, settings: dict, end_match: list[dict]) -> None:  # type: ignore[type-arg]
    plan = changed(BASE, **settings)
    assert name in ids(plan)
    assert name in ids(as_own(plan))
    assert [change for change in end_match if name in ids(changed(plan, **change))] == []


MODEL_SPECIFIC = [issue for issue in ALL if issue.match.architectures or issue.match.sparse_attention is not None]


def test_model_name_alone_never_matches_a_known_issue() -> None:
    assert len(MODEL_SPECIFIC) >= 25
    llama = plan_of("cpu-tiny").model
    for name, settings, _ in CASES:
        plan = changed(BASE, **{key: value for key, value in settings.items() if key != "model"})
        for model_name in ("glm-5.2-mxfp4", "glm-5.3-flash", "deepseek-v3.2", "qwen3.5-397b", "kimi-k3"):
            renamed = replace(plan, model=replace(llama, name=model_name, quantization=plan.model.quantization))
            assert not ids(renamed) & {issue.id for issue in MODEL_SPECIFIC}, name


def test_deepseek_v3_2_matches_indexer_but_not_glm_issues() -> None:
    model = replace(BASE.model, name="house", architecture="DeepseekV32ForCausalLM")
    plan = replace(changed(BASE, version="0.5.18", dp_attention=True, **DECODE), model=model)
    assert {"indexer-logits-2-gib", "dp-attention-mtp-topk", "dsa-dp-attention-hang-unfixed"} <= ids(plan)
    assert not {"pd-decode-graph-choice", "mixed-load-gpu-fault", "mi300x-overlap-segfault"} & ids(plan)


def test_known_issue_ids_are_unique_and_tested() -> None:
    tested_in_other_files = {
        "topk-v2-without-header", "glm-mxfp4-unmapped", "rope-dimension-clobbered", "gfx950-block-fp8-miscompiled",
        "prefill-131072-out-of-memory", "mxfp4-without-gfx950", "nvfp4-on-rocm", "attention-fp8-by-rows",
        "custom-all-reduce-two-streams", "fusion-without-custom-all-reduce",
        "fusion-without-aiter", "quick-reduce-cast", "speculation-is-greedy", "aiter-atomic-moe", "quick-reduce-int8",
        "exclude-list", "blockscale-gemm", "shared-expert-dropped", "sparse-top-k", "fp8-cache", "missing-shards",
        "other-weights", "one-file-a-token",
    }  # fmt: skip
    assert len({issue.id for issue in ALL}) == len(ALL)
    assert {issue.id for issue in ALL} == {name for name, _, _ in CASES} | tested_in_other_files


@pytest.mark.parametrize("issue", ALL, ids=lambda issue: issue.id)
def test_known_issue_text_is_short_and_has_confidence(issue: KnownIssue) -> None:
    assert max(len(issue.summary), len(issue.hint)) <= 240
    assert issue.confidence in {"high", "medium", "low"}
    assert issue.checked.startswith("2026-11")


@pytest.mark.parametrize(
    ("wanted", "value", "fits"),
    [
        (">0,<=4096", "4096", True), (">0,<=4096", "-1", False), (">0,<=4096", "many", False),
        ("mori|nixl", "nixl", True), ("mori|nixl", "mooncake", False), ("false", "False", True),
    ],
)  # fmt: skip
def test_value_conditions_match_numbers_and_alternatives(wanted: str, value: str, fits: bool) -> None:
    plan = changed(BASE, flags={"x": value})
    assert matches(IssueConditions(flags={"x": wanted}), plan) is fits
    assert matches(IssueConditions(without_flags={"x": wanted}), plan) is not fits
    assert matches(IssueConditions(env={"OWL_*": wanted}), changed(BASE, env={"OWL_X": value})) is fits


@pytest.mark.parametrize("profile", ["mi355x-tp8", "mi355x-tp4dp2"])
def test_default_profiles_warn_of_their_known_issues(profile: str) -> None:
    warned = {warning.id for warning in load(profile).plan.warnings}
    assert {"draft-ranks-diverge", "graph-capture-race", "indexer-logits-2-gib-unknown"} <= warned
    assert "cold-kernel-cache" not in warned  # the recipe's watchdog timeout is half an hour


def test_missing_watchdog_timeout_warns_of_cold_kernels() -> None:
    plan = load("mi355x-tp8", overrides=["flags.watchdog-timeout=null"]).plan
    assert flag_of(plan, "watchdog-timeout") is None
    assert "cold-kernel-cache" in {warning.id for warning in plan.warnings}
    plan = load("mi355x-gpt-oss-120b-tp8").plan
    assert [(setting.values, setting.source) for setting in plan.flags if setting.name == "watchdog-timeout"] == [
        (("1200",), "sglang #34586")
    ]
