"""Separate prefill and decode servers in a cluster: the pods of each role, their selection, and rejected settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_samples import HOST_PATH, all_objects, check_object, cluster_plan, manifest_texts
from crd_schemas import check_crd

from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.monitoring.files import monitoring_files
from orchestrator.monitoring.request import MonitoringRequest, monitored
from orchestrator.planner.planning import load
from orchestrator.runtimes.kubernetes.checks import cluster_findings
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.spec import start_problems

KEY = "server.api_key_env=SGLANG_KEY"
CLAIM = "kubernetes.weights.pvc=models"
CPU, RDMA = "cpu-tiny-1p1d", "mi355x-1p1d"
SCALED = tuple(
    f"kubernetes.autoscaling.{setting}"
    for setting in ("max=2", "prometheus=http://p", "start_seconds=60", "growth_rps_per_minute=1", "replica_rps=1")
)
UNITS = ("prefill-1", "prefill-2", "decode-1")


def objects_of(profile: str, *settings: str) -> dict[tuple[str, str], Any]:
    """Return every object by its kind and unit."""
    objs = all_objects(cluster_plan(profile, *settings), "roles")
    return {(obj["kind"], obj["metadata"]["labels"]["deploy.unit"]): obj for obj in objs}


@pytest.fixture(scope="module")
def by_unit() -> dict[tuple[str, str], Any]:
    """Return the objects of two prefill servers and one decode server with transfer over TCP."""
    return objects_of(CPU, HOST_PATH, "layout.prefill.replicas=2")


def pod_of(by_unit: dict[tuple[str, str], Any], unit_name: str) -> Any:  # noqa: ANN401 - JSON of the API's shape
    return by_unit["Deployment", unit_name]["spec"]["template"]


def container(by_unit: dict[tuple[str, str], Any], unit_name: str) -> Any:  # noqa: ANN401 - as above
    return pod_of(by_unit, unit_name)["spec"]["containers"][0]


def selected_by(args: list[str], option: str) -> dict[str, str]:
    after = args[args.index(option) + 1 :]
    end = next(index for index, word in enumerate(after) if word.startswith("--"))
    return dict(word.split("=") for word in after[:end])


@pytest.mark.parametrize("version", ["1.28", "1.32", "1.36"])
@pytest.mark.parametrize(("profile", "settings"), [(CPU, (HOST_PATH,)), (RDMA, (CLAIM, KEY))])
def test_every_object_is_valid_for_kubernetes_version(profile: str, settings: tuple[str, ...], version: str) -> None:
    for obj in objects_of(profile, *settings).values():
        check_object(obj, version)


def test_gateway_selects_pods_of_each_role(by_unit: dict[tuple[str, str], Any]) -> None:
    args = container(by_unit, "gateway")["args"]
    assert "--pd-disaggregation" in args
    assert not {"--selector", "--worker-urls", "--prefill", "--decode"} & set(args)
    labels = [pod_of(by_unit, unit_name)["metadata"]["labels"].items() for unit_name in (*UNITS, "gateway")]
    selectors = [selected_by(args, f"--{role}-selector").items() for role in ("prefill", "decode")]
    assert [[role <= pod for pod in labels] for role in selectors] == [
        [True, True, False, False],
        [False, False, True, False],
    ]


def test_pod_annotations_name_worker_and_bootstrap_ports(by_unit: dict[tuple[str, str], Any]) -> None:
    ports = {}
    for unit_name in UNITS:
        args, annotations = container(by_unit, unit_name)["args"], pod_of(by_unit, unit_name)["metadata"]["annotations"]
        option = "--disaggregation-bootstrap-port"
        argument_ports = [args[args.index("--port") + 1], *([args[args.index(option) + 1]] if option in args else [])]
        annotated_ports = [
            annotations["smg.ai/worker-ports"],
            *filter(None, [annotations.get("sglang.ai/bootstrap-port")]),
        ]
        ports[unit_name] = [str(port["containerPort"]) for port in container(by_unit, unit_name)["ports"]]
        assert argument_ports == annotated_ports == ports[unit_name]
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        assert {"name": "SGLANG_HOST_IP", "valueFrom": address} in container(by_unit, unit_name)["env"]
    assert [len(numbers) for numbers in ports.values()] == [2, 2, 1]
    assert len({port for numbers in ports.values() for port in numbers}) == 5  # two servers may share a node's network
    assert "smg.ai/worker-ports" not in pod_of(by_unit, "gateway")["metadata"]["annotations"]


def test_only_first_deployment_has_server_name(by_unit: dict[tuple[str, str], Any]) -> None:
    names = [by_unit["Deployment", unit_name]["metadata"]["name"] for unit_name in (*UNITS, "gateway")]
    assert names == ["roles", "roles--prefill-2", "roles--decode-1", "roles--gateway"]
    assert by_unit["Service", "gateway"]["metadata"]["name"] == "roles"


def test_network_policy_admits_pods_of_same_server(by_unit: dict[tuple[str, str], Any]) -> None:
    for unit_name in UNITS:
        assert by_unit["NetworkPolicy", unit_name]["spec"]["ingress"] == [
            {"from": [{"podSelector": {"matchLabels": {"deploy.name": "roles"}}}]}
        ]
    assert by_unit["NetworkPolicy", "gateway"]["spec"]["ingress"][0]["ports"]


def test_role_probes_do_not_need_the_other_role(by_unit: dict[tuple[str, str], Any]) -> None:
    for unit_name in UNITS:
        server = container(by_unit, unit_name)
        port = str(server["ports"][0]["containerPort"])
        assert server["startupProbe"]["exec"]["command"][-3:] == [port, "1", "--alone"]
        assert server["livenessProbe"]["exec"]["command"][-4:] == [port, "1", "20", "--alone"]


def test_probes_of_a_role_ask_each_rank() -> None:
    server = container(objects_of(CPU, HOST_PATH, "layout.decode.dp=2"), "decode-1")
    assert server["startupProbe"]["exec"]["command"][-2:] == ["2", "--alone"]
    assert server["livenessProbe"]["exec"]["command"][-3:] == ["2", "20", "--alone"]


def test_rdma_transfer_uses_host_network() -> None:
    by_unit = objects_of(RDMA, CLAIM, KEY)
    for unit_name in ("prefill-1", "decode-1"):
        spec, server = pod_of(by_unit, unit_name)["spec"], container(by_unit, unit_name)
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert server["securityContext"] == {"privileged": True}
        assert {"name": "infiniband", "hostPath": {"path": "/dev/infiniband", "type": "Directory"}} in spec["volumes"]
        assert server["resources"]["limits"]["amd.com/gpu"] == "4"
        assert "--base-gpu-id" not in server["args"]
        assert {"name": "MORI_IO_QP_MAX_SEND_WR", "value": "16384"} in server["env"]
        assert "affinity" not in spec
        assert ("NetworkPolicy", unit_name) not in by_unit  # network policies do not apply to the host network
        [_, arguments] = spec["initContainers"]
        assert {"name": "infiniband", "mountPath": "/dev/infiniband"} in arguments["volumeMounts"]
        assert arguments["securityContext"] == {"privileged": True}
        assert json.loads(by_unit["ConfigMap", unit_name]["data"]["arguments.json"])["rdma"]
    assert "hostNetwork" not in pod_of(by_unit, "gateway")["spec"]
    text = manifest_texts(cluster_plan(RDMA, CLAIM, KEY))["kubernetes.yaml"]
    assert "# the namespace must admit the Pod Security Standard privileged: " in text
    assert "the KV cache crosses by RDMA" in text


def test_multi_node_role_has_the_environment_of_its_network() -> None:
    def names(*settings: str) -> set[str]:
        return {obj["name"] for obj in container(objects_of(RDMA, CLAIM, KEY, *settings), "prefill-1")["env"]}

    added = names("layout.decode.nodes=2", "layout.decode.tp=16", "hardware.network=ainic") - names()
    assert {"NCCL_CUMEM_ENABLE", "NCCL_DMABUF_ENABLE", "IONIC_LOCKFREE"} <= added


def test_multi_node_role_is_a_leader_worker_set() -> None:
    settings = (CLAIM, KEY, "layout.decode.nodes=2", "layout.decode.tp=16")
    by_unit = objects_of(RDMA, *settings)
    group = by_unit["LeaderWorkerSet", "decode-1"]
    check_crd(group, "leaderworkerset", "v0.9.0")
    assert ("Deployment", "prefill-1") in by_unit
    leader = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    [anti_affinity] = leader["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert anti_affinity["labelSelector"]["matchLabels"] == {"deploy.name": "roles", "deploy.unit": "decode-1"}
    args = container(by_unit, "gateway")["args"]
    index = "leaderworkerset.sigs.k8s.io/worker-index"
    assert selected_by(args, "--decode-selector")[index] == "0"  # only rank 0 serves requests
    assert index not in selected_by(args, "--prefill-selector")
    text = manifest_texts(cluster_plan(RDMA, *settings))["kubernetes.yaml"]
    assert "# the cluster needs LeaderWorkerSet 0.6 or newer" in text
    assert "the ranks are on several nodes" in text
    assert "the KV cache crosses by RDMA" not in text


@pytest.mark.parametrize(
    ("profile", "settings", "message", "key"),
    [
        (RDMA, (CLAIM,), "sends its KV cache by RDMA is open to the network of the nodes", "server.api_key_env"),
        (CPU, (CLAIM, "layout.decode.nodes=2", "layout.decode.tp=2"), "a server on several nodes is open", "api_key"),
        (
            CPU,
            (CLAIM, *SCALED),
            "autoscaling does not support prefill and decode servers",
            "autoscaling=null",
        ),
    ],
)  # fmt: skip
def test_unsupported_role_settings_are_rejected(
    profile: str, settings: tuple[str, ...], message: str, key: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        cluster_plan(profile, *settings)
    [problem] = [item for item in caught.value.problems if message in item.message]
    assert key in problem.hint
    assert problem.location


def test_up_rejects_multi_node_role() -> None:
    overrides = ("runtime=kubernetes", CLAIM, KEY, "layout.prefill.nodes=2", "layout.prefill.tp=16")
    [problem] = start_problems(load(RDMA, overrides=overrides).profile)
    assert problem.location == "layout.prefill.nodes"
    assert "kubectl apply" in problem.hint
    assert not list(start_problems(load(RDMA, overrides=overrides[:3]).profile))


@pytest.mark.parametrize(("gpus", "fits"), [((8,), True), ((2, 4), True), ((2, 2, 2, 2), False)])
def test_preflight_checks_that_a_node_fits_the_largest_pod(
    gpus: tuple[int, ...], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"status": {"allocatable": {"amd.com/gpu": str(count)}}} for count in gpus]
    response = {"metadata": {"labels": {}}, "items": nodes, "gitVersion": "v1.36.0"}
    result = CompletedProgram(argv=("kubectl",), code=0, stdout=json.dumps(response), stderr="")
    monkeypatch.setattr(Cluster, "ask", lambda *_, **__: result)
    nodes_finding = {finding.check: finding for finding in cluster_findings(cluster_plan(RDMA, CLAIM, KEY))}["nodes"]
    assert (nodes_finding.level.value == "info") is fits
    assert nodes_finding.needed == "4 amd.com/gpu on one node"


def test_prometheus_scrapes_roles_but_not_gateway(tmp_path: Path) -> None:
    request = MonitoringRequest(
        name=None, profile=CPU, overrides=("runtime=kubernetes", HOST_PATH), workload=None, expected=(), target=None,
        gpu_exporter=None,
    )  # fmt: skip
    files = monitoring_files(monitored(request, Home(tmp_path)))
    [text] = [file.content for file in files if "monitor" in file.path]
    [selector] = [obj["spec"]["selector"] for obj in yaml.safe_load_all(text) if obj["kind"] == "PodMonitor"]
    assert selector["matchLabels"] == {"deploy.name": CPU}
    assert selector["matchExpressions"] == [{"key": "deploy.role", "operator": "In", "values": ["prefill", "decode"]}]
