"""A server on several nodes of a cluster: a LeaderWorkerSet that is valid in two versions of its schema.

The samples are the schemas in config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml
of kubernetes-sigs/lws at the tags v0.7.0 (cd3a73a3) and v0.9.0 (f056f611), as JSON without descriptions.
"""

from typing import Any

import jsonschema
import pytest
from cluster_samples import all_objects, check_object, cluster_plan
from crd_schemas import check_crd

from orchestrator.core.errors import ProfileError
from orchestrator.planner.planning import load

VERSIONS = ("v0.7.0", "v0.9.0")
TWO_NODES = ("layout.nodes=2", "server.api_key_env=SGLANG_KEY", "kubernetes.weights.pvc=models")
GPUS = (*TWO_NODES, "layout.tp=16")
CPUS = (*TWO_NODES, "layout.tp=2")


def group_of(profile: str, *settings: str) -> dict[str, Any]:
    [group] = [obj for obj in all_objects(cluster_plan(profile, *settings)) if obj["kind"] == "LeaderWorkerSet"]
    return group


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("profile", "settings"), [("mi355x-tp8", GPUS), ("b200-tp8", GPUS), ("cpu-tiny", CPUS)])
def test_leader_worker_set_matches_schema(profile: str, settings: tuple[str, ...], version: str) -> None:
    group = group_of(profile, *settings)
    check_crd(group, "leaderworkerset", version)
    for template in ("leaderTemplate", "workerTemplate"):
        spec = group["spec"]["leaderWorkerTemplate"][template]["spec"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
        check_object(pod, "1.32")


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_field_fails_the_schema(version: str) -> None:
    """The schema is strict, so the test above can fail."""
    group = group_of("cpu-tiny", *CPUS)
    group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["hostNetworks"] = True
    with pytest.raises(jsonschema.ValidationError, match="hostNetworks"):
        check_crd(group, "leaderworkerset", version)


def test_ranks_use_host_network_of_separate_nodes() -> None:
    template = group_of("mi355x-tp8", *GPUS)["spec"]["leaderWorkerTemplate"]
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    for name in ("leaderTemplate", "workerTemplate"):
        spec = template[name]["spec"]
        [server] = spec["containers"]
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        [anti_affinity] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert anti_affinity["topologyKey"] == "kubernetes.io/hostname"
        assert anti_affinity["labelSelector"]["matchLabels"].items() <= template[name]["metadata"]["labels"].items()
        assert {"name": "infiniband", "hostPath": {"path": "/dev/infiniband", "type": "Directory"}} in spec["volumes"]
        assert server["resources"]["limits"]["amd.com/gpu"] == "8"
        assert server["env"][-1]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}  # of SGLANG_HOST_IP
        words = server["args"]
        assert words[words.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
        assert words[words.index("--dist-init-addr") + 1] == "$(LWS_LEADER_ADDRESS):31000"


def test_only_leader_has_probes_and_drains() -> None:
    plan = cluster_plan("mi355x-tp8", *GPUS)
    by_kind = {obj["kind"]: obj for obj in all_objects(plan)}
    template = by_kind["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    [leader], [worker] = (template[name]["spec"]["containers"] for name in ("leaderTemplate", "workerTemplate"))
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= leader.keys()
    assert not {"startupProbe", "readinessProbe", "livenessProbe"} & worker.keys()
    assert worker["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(plan.timeouts.termination_grace + 25)]
    assert leader["lifecycle"]["preStop"]["exec"]["command"][0] != "sleep"  # the leader drains
    assert by_kind["Service"]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert "NetworkPolicy" not in by_kind  # network policies do not apply to the host network


def test_gateway_selects_only_leaders() -> None:
    """The health endpoint of the other ranks always succeeds."""
    objs = all_objects(cluster_plan("cpu-tiny", *CPUS, "replicas=2"))
    [gateway] = [obj for obj in objs if obj["kind"] == "Deployment"]
    args = gateway["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--selector") + 1 :][2] == "leaderworkerset.sigs.k8s.io/worker-index=0"


def test_host_network_server_requires_api_key() -> None:
    overrides = ("runtime=kubernetes", "layout.tp=16", "layout.nodes=2", "kubernetes.weights.pvc=models")
    with pytest.raises(ProfileError) as error:
        load("mi355x-tp8", overrides=overrides)
    [problem] = error.value.problems_or_self()
    assert "open to the network of the nodes" in problem.message
    assert "server.api_key_env" in problem.hint
