"""The patches selected for a plan."""

from collections.abc import Iterable

import pytest

from orchestrator.core.origin import Origin
from orchestrator.patches.ledger import read_ledger
from orchestrator.plan.patches import patch_env, profile_patches
from orchestrator.plan.plan import PlannedPatch
from orchestrator.planner.planning import read_profile
from orchestrator.profiles.settings import Setting

LEDGER = read_ledger()


def selected(
    version: str, *, platform: str = "rocm", steps: int | None = 5, table: str | None = None
) -> tuple[PlannedPatch, ...]:
    profile = read_profile("mi355x-tp8").profile
    flags = {name: setting for name, setting in profile.flags.items() if not name.startswith("speculative")}
    if steps is not None:
        flags = {**profile.flags, "speculative-num-steps": Setting(value=steps, origin=Origin.USER)}
    engine = profile.engine.model_copy(update={"version": version, "platform": platform})
    changed = profile.model_copy(update={"engine": engine, "flags": flags})
    return profile_patches(changed, LEDGER, {"moe-table": table} if table else {})


def expected(uses: Iterable[PlannedPatch]) -> list[str]:
    return [use.id for use in uses if use.kind != "file" and use.expected]


def included(uses: Iterable[PlannedPatch]) -> list[str]:
    return [use.id for use in uses if use.kind != "file"]


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("0.5.14", ["eagle-verify-broadcast", "mtp-shared-expert-exclude", "rocm-cuda-runtime-guard"]),
        ("0.5.15.post1", ["dsa-topk-v2-off", "eagle-verify-broadcast", "mtp-shared-expert-exclude"]),
        ("0.5.16", ["eagle-verify-broadcast"]),
        ("0.5.18", []),
        ("0.5.23", []),
    ],
)
def test_engine_version_decides_expected_but_not_included_patches(version: str, needed: list[str]) -> None:
    assert expected(selected(version)) == needed
    assert included(selected(version)) == [
        "dsa-topk-v2-off", "eagle-verify-broadcast", "mtp-shared-expert-exclude", "rocm-cuda-runtime-guard",
    ]  # fmt: skip


def test_unexpected_patch_has_reason_and_sets_no_variable() -> None:
    topk = next(use for use in selected("0.5.14") if use.id == "dsa-topk-v2-off")
    assert topk.reason == "sglang 0.5.14 is not in `>=0.5.15,<0.5.16` (sgl-project/sglang#30506)"
    assert patch_env(LEDGER, [topk]) == ()


def test_guard_requires_at_least_four_draft_steps() -> None:
    assert "rocm-cuda-runtime-guard" in included(selected("0.5.14", steps=4))
    assert "rocm-cuda-runtime-guard" not in included(selected("0.5.14", steps=3))


def test_no_draft_model_patch_without_speculation() -> None:
    assert included(selected("0.5.14", steps=None)) == ["dsa-topk-v2-off"]


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_other_platforms_get_no_patches(platform: str) -> None:
    assert selected("0.5.14", platform=platform) == ()


def test_environment_patch_sets_variable_with_source() -> None:
    (variable,) = patch_env(LEDGER, selected("0.5.15.post1"))

    assert (variable.name, variable.value) == ("SGLANG_OPT_USE_TOPK_V2", "false")
    assert variable.source == "InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh"


def test_table_patch_sets_variable_only_with_table() -> None:
    without, given = selected("0.5.16"), selected("0.5.16", table="ab" * 32)

    assert "no input `moe-table`" in without[0].reason
    assert patch_env(LEDGER, without) == ()
    assert given[0].input_sha256 == "ab" * 32
    assert [variable.name for variable in patch_env(LEDGER, given)] == ["AITER_CONFIG_FMOE"]
