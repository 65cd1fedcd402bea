"""The environment variables of an image: their display, unknown images, and warnings of harmful values."""

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home
from orchestrator.images.config import ImageConfig
from orchestrator.images.registry import Registry
from orchestrator.plan.facts import NO_FACTS
from orchestrator.plan.plan import Plan
from orchestrator.planner.plan_warnings import (
    image_config,
    image_variables,
    image_warnings,
    note_environment,
    require_unblocked,
)
from orchestrator.planner.planning import load
from orchestrator.planner.source import profile_source

CAST = "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16"
IMAGE = "lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260728"
# sglang docker/rocm.Dockerfile, "Performance environment variable"; the cast is sglang's default
ENV = {"ROCM_QUICK_REDUCE_QUANTIZATION": "INT8", CAST: "1", "NCCL_MIN_NCHANNELS": "112", "HSA_NO_SCRATCH_RECLAIM": "1"}


@pytest.fixture(autouse=True)
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.planner.plan_warnings.local_config", lambda _: None)


def config(**env: str) -> ImageConfig:
    return ImageConfig(reference=IMAGE, digest="", env={"PATH": "/bin", **ENV, **env}, labels={})


def plan_of(*overrides: str) -> Plan:
    return load("mi355x-tp8", overrides=overrides).plan


def test_image_environment_is_shown_with_plan_overrides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.planner.plan_warnings.local_config", {IMAGE: config()}.get)
    note_environment(plan_of(), image_config(plan_of()))
    stderr = capsys.readouterr().err
    assert "HSA_NO_SCRATCH_RECLAIM=1, NCCL_MIN_NCHANNELS=112" in stderr
    assert f"{CAST}=0 (the image sets 1; sgl-project/sglang#40084)" in stderr
    assert "ROCM_QUICK_REDUCE_QUANTIZATION=INT8" in stderr
    assert "PATH" not in stderr
    assert "warning" not in stderr


def test_unknown_image_environment_is_reported_without_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Registry, "config", lambda *_: pytest.fail("the registry was queried"))
    note_environment(plan_of(), image_config(plan_of()))
    assert f"the environment variables of `{IMAGE}` are unknown; `deploy inspect {IMAGE}`" in capsys.readouterr().err


def test_process_runtime_reports_no_image_environment(capsys: pytest.CaptureFixture[str]) -> None:
    note_environment(load("cpu-tiny").plan, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("overrides", "env", "expected"),
    [
        ((), {}, []),
        ((f"env.{CAST}=1",), {}, ["quick-reduce-cast"]),
        ((f"env.{CAST}=1",), {"ROCM_QUICK_REDUCE_QUANTIZATION": "NONE"}, []),
        ((f"env.{CAST}=1", "env.ROCM_QUICK_REDUCE_QUANTIZATION=NONE"), {}, []),
    ],
)
def test_harmful_image_variable_warns_unless_overridden(
    overrides: tuple[str, ...], env: dict[str, str], expected: list[str]
) -> None:
    assert [warning.id for warning in image_warnings(plan_of(*overrides), config(**env))] == expected


@pytest.mark.parametrize("profile", ["mi355x-tp8", "mi355x-1p1d"])
def test_image_variable_of_a_blocking_issue_prevents_the_start(profile: str) -> None:
    image = config(PYTORCH_HIP_ALLOC_CONF="expandable_segments:True")
    with pytest.raises(ProfileError, match=f"with the variables of `{IMAGE}`") as caught:
        start(profile, image)
    (problem,) = caught.value.problems
    assert "expandable segments cannot be shared" in problem.message
    start(profile, config())
    start(profile, None)
    start(profile, image, "allow_known_issues=[expandable-segments]")
    start(profile, image, "env.PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8")


def start(profile: str, image: ImageConfig | None, *overrides: str) -> None:
    source = profile_source(profile, overrides, Home.from_environment())
    require_unblocked(source, source.build(NO_FACTS), image)


def test_shipped_hardware_overrides_harmful_image_variable() -> None:
    assert f"{CAST}=0 (the image sets 1; sgl-project/sglang#40084)" in image_variables(plan_of(), config())
