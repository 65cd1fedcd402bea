"""Autoscaled replicas in a cluster: one Deployment, and a ScaledObject that is valid in two versions of KEDA.

The samples are the schemas in config/crd/bases/keda.sh_scaledobjects.yaml of kedacore/keda at the tags v2.19.0 and
v2.20.2, as JSON without descriptions.
"""

from typing import Any

import jsonschema
import pytest
from cluster_samples import HOST_PATH, MONITORED, all_objects, check_object, cluster_plan, manifest_texts
from crd_schemas import check_crd

from orchestrator.core.errors import ProfileError
from orchestrator.planner.planning import load
from orchestrator.runtimes.kubernetes.spec import start_problems

VALUES = {
    "max": "8",
    "prometheus": "http://prometheus.monitoring:9090",
    "start_seconds": "300",
    "growth_rps_per_minute": "2",
    "replica_rps": "4",
}
SECTION = tuple(f"kubernetes.autoscaling.{key}={value}" for key, value in VALUES.items())
SETTINGS = ("replicas=2", HOST_PATH, MONITORED, *SECTION)


def of_kind(objs: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [obj for obj in objs if obj["kind"] == kind]


@pytest.mark.parametrize("version", ["v2.19.0", "v2.20.2"])
@pytest.mark.parametrize("profile", ["mi355x-tp4x2", "cpu-tiny"])
def test_scaled_object_matches_schema_and_targets_replica_deployment(profile: str, version: str) -> None:
    objs = all_objects(cluster_plan(profile, *SETTINGS), "served")
    [scaled] = of_kind(objs, "ScaledObject")
    check_crd(scaled, "keda", version)
    deployments = {obj["metadata"]["name"]: obj["spec"] for obj in of_kind(objs, "Deployment")}
    assert deployments.keys() == {"served--gateway", "served--replica"}
    replicas = deployments[scaled["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in replicas, "`kubectl apply` must not reset the count that KEDA sets"
    for obj in of_kind(objs, "Deployment"):
        check_object(obj, "1.32")
    pod = replicas["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > 30
    assert "preStop" in pod["spec"]["containers"][0]["lifecycle"]
    words = deployments["served--gateway"]["template"]["spec"]["containers"][0]["args"]
    selectors = dict(word.split("=") for word in words[words.index("--selector") + 1 :] if "=" in word)
    assert selectors.items() <= pod["metadata"]["labels"].items(), "the gateway selects each replica"


def test_unknown_field_fails_the_schema() -> None:
    """The schema is strict, so the test above can fail."""
    [scaled] = of_kind(all_objects(cluster_plan("cpu-tiny", *SETTINGS)), "ScaledObject")
    scaled["spec"]["triggers"][0]["thresholds"] = "5"
    with pytest.raises(jsonschema.ValidationError, match="thresholds"):
        check_crd(scaled, "keda", "v2.20.2")


def test_scaling_bounds_and_triggers_follow_settings() -> None:
    plan = cluster_plan("cpu-tiny", *SETTINGS)
    [scaled] = of_kind(all_objects(plan, "served"), "ScaledObject")
    spec = scaled["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (4, 8)  # 1 + 2/min x 5 min / 4 rps, rounded up
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 900
    queue, cache = spec["triggers"]
    assert (queue["metricType"], queue["metadata"]["threshold"]) == ("AverageValue", "5")
    assert queue["metadata"]["query"] == (
        'sum(max by (pod, dp_rank) (sglang:num_queue_reqs{server="served",priority=""}))'
    )
    assert (cache["metricType"], cache["metadata"]["threshold"]) == ("Value", "0.8")
    text = manifest_texts(plan, "served")["kubernetes.yaml"]
    assert "# a start takes 300 s: autoscaling cannot help in shorter bursts" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("replicas=1",), "autoscaling needs replicas of one node behind a gateway"),
        (("kubernetes.autoscaling.max=3",), "needs 4 replicas while another starts, and `max` is 3"),
    ],
)
def test_invalid_autoscaling_settings_are_rejected(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ProfileError) as error:
        load("cpu-tiny", overrides=("runtime=kubernetes", "engine.image=a/b:1", *SETTINGS, *settings))
    assert any(message in problem.message for problem in error.value.problems_or_self())


def test_up_with_autoscaling_hints_at_render() -> None:
    profile = load("cpu-tiny", overrides=("runtime=kubernetes", "engine.image=a/b:1", *SETTINGS)).profile
    [problem] = start_problems(profile)
    assert "deploy render" in problem.hint
