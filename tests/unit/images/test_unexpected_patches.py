"""Test patch states that a build did not expect: they are reported, applied or rejected."""

from pathlib import Path

import pytest

from orchestrator.core.errors import BuildError
from orchestrator.core.paths import Home
from orchestrator.images.build import BuiltImage
from orchestrator.images.patch_drift import require_version, startup_patches, unexpected_patches
from orchestrator.images.receipt import ImageReceipt, PatchRecord, SourceRecord
from orchestrator.plan.plan import NO_DETECTED_PATCHES, Plan
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.docker import spec
from orchestrator.runtimes.docker.container import spec_of

GUARD, TOPK, EXCLUDE = "rocm-cuda-runtime-guard", "dsa-topk-v2-off", "mtp-shared-expert-exclude"


def receipt(version: str | None = "0.5.14", **states: str) -> ImageReceipt:
    """Return a receipt; the keywords are patch ids with underscores."""
    records = (
        PatchRecord(id=name.replace("_", "-"), title="", kind="", state=state, upstream="", evidence=(), files=())
        for name, state in states.items()
    )
    source = SourceRecord(root="/sglang", version=version, commit=None)
    return ImageReceipt(python="3.10", sources={"sglang": source}, patches=tuple(records))


def july() -> Plan:
    return load("mi355x-tp8-july").plan


@pytest.mark.parametrize("version", ["0.5.14", "0.5.14+g1234", None, "unknown"])
def test_matching_or_unknown_source_version_is_accepted(version: str | None) -> None:
    require_version(receipt(version), july().engine)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.14.post1", "0.5.15"])
def test_sources_of_another_release_are_rejected_with_hint(version: str) -> None:
    with pytest.raises(BuildError, match=f"contains sglang {version}; the engine names 0.5.14") as caught:
        require_version(receipt(version), july().engine)
    assert f"`--set engine.version={version}`" in caught.value.hint


def test_development_build_is_accepted_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    require_version(receipt("0.5.15.dev57+g1234"), july().engine)
    assert "contains sglang 0.5.15.dev57+g1234, between two releases" in capsys.readouterr().err


def test_expected_patch_states_are_not_reported() -> None:
    expected = receipt(
        rocm_cuda_runtime_guard="applied", mtp_shared_expert_exclude="applied at startup",
        eagle_verify_broadcast="applied", dsa_topk_v2_off="not applicable", aiter_fp4_moe_table="needed",
    )  # fmt: skip
    assert list(unexpected_patches(july(), expected)) == []
    assert startup_patches(july(), expected) == NO_DETECTED_PATCHES


def test_each_unexpected_patch_state_has_a_reason() -> None:
    messages = unexpected_patches(
        july(), receipt(rocm_cuda_runtime_guard="upstream", dsa_topk_v2_off="applied at startup")
    )
    assert list(messages) == [
        (
            "patch `dsa-topk-v2-off` was not expected, but the sources need it (applied at startup): "
            "sglang 0.5.14 is not in `>=0.5.15,<0.5.16` (sgl-project/sglang#30506)"
        ),
        (
            "patch `rocm-cuda-runtime-guard` was expected to be needed, but its state is upstream: "
            "sglang 0.5.14 is in `>=0.5.10,<0.5.15` (sgl-project/sglang#29373)"
        ),
    ]
    newer = load("mi355x-tp8").plan
    assert "cannot determine whether the sources need" in next(
        iter(unexpected_patches(newer, receipt("0.5.16", rocm_cuda_runtime_guard="conflict")))
    )


def prepare(plan: Plan, image_receipt: ImageReceipt, monkeypatch: pytest.MonkeyPatch, home: Home) -> spec.PreparedRun:
    built = BuiltImage(
        tag="t:1", image_id="sha256:1", receipt=image_receipt, built=True, builder="classic", seconds=0.0
    )
    monkeypatch.setattr(spec, "find_docker", lambda _: None)
    monkeypatch.setattr(spec, "build_image", lambda *_: built)
    return spec.prepare(render_artifacts(plan), HostRef(home=home))


def test_detected_patch_sets_variable_without_changing_digest(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An image of July is labeled 0.5.14, but contains the kernel that the next release enables by default."""
    home = Home(tmp_path_factory.mktemp("home"))
    plan = july()
    assert "SGLANG_OPT_USE_TOPK_V2" not in dict(render_artifacts(plan).command.env)

    run = prepare(plan, receipt(dsa_topk_v2_off="applied at startup"), monkeypatch, home)

    assert dict(run.artifacts.command.env)["SGLANG_OPT_USE_TOPK_V2"] == "false"
    assert run.artifacts.plan.digest == plan.digest


def test_detected_config_patch_mounts_overlay(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = Home(tmp_path_factory.mktemp("home"))
    plan = load("mi355x-tp8").plan
    run = prepare(plan, receipt("0.5.16", mtp_shared_expert_exclude="applied at startup"), monkeypatch, home)

    mounts = [mount.source for mount in spec_of(run.artifacts).mounts]
    assert any("overlays/" in source for source in mounts)
    assert not any("overlays/" in mount.source for mount in spec_of(render_artifacts(plan)).mounts)
    assert run.detected_patches is not None
    assert run.detected_patches.ids == {EXCLUDE}
    assert EXCLUDE not in run.not_needed


def test_profile_variable_overrides_detected_patch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = load("mi355x-tp8-july", overrides=["env.SGLANG_OPT_USE_TOPK_V2=true"]).plan
    run = prepare(plan, receipt(dsa_topk_v2_off="applied at startup"), monkeypatch, Home(tmp_path))
    assert dict(run.artifacts.command.env)["SGLANG_OPT_USE_TOPK_V2"] == "true"
