"""Replicas in a cluster: the settings of each pod, network access, and permissions of the gateway."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_samples import CASES, HOST_PATH, all_objects, cluster_plan

from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.probes import hang_seconds
from orchestrator.runtimes.kubernetes.record import ReplicaRef
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime

MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
UNITS = ("replica-1", "replica-2", "gateway")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return cluster_plan("mi355x-tp4x2", *CASES["mi355x-tp4x2"])


@pytest.fixture(scope="module")
def by_unit(plan: Plan) -> dict[tuple[str, str], Any]:
    """Return every object by its kind and unit."""
    return {(obj["kind"], obj["metadata"]["labels"]["deploy.unit"]): obj for obj in all_objects(plan, "pair")}


def container(by_unit: dict[tuple[str, str], Any], unit_name: str) -> Any:  # noqa: ANN401 - JSON of the API's shape
    return by_unit["Deployment", unit_name]["spec"]["template"]["spec"]["containers"][0]


def test_each_replica_pod_has_its_own_gpus(plan: Plan, by_unit: dict[tuple[str, str], Any]) -> None:
    first, second = replica_plans(plan)
    assert first == second
    for unit_name in UNITS[:2]:
        assert container(by_unit, unit_name)["resources"]["limits"]["amd.com/gpu"] == "4"
        assert "--base-gpu-id" not in container(by_unit, unit_name)["args"]
        assert container(by_unit, unit_name)["ports"] == [{"name": "http", "containerPort": plan.server.port}]
    assert container(by_unit, "gateway")["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_first_deployment_and_gateway_service_have_server_name(
    by_unit: dict[tuple[str, str], Any],
) -> None:
    first, second, gateway = (by_unit["Deployment", unit_name]["metadata"]["name"] for unit_name in UNITS)
    (single,) = [obj for obj in all_objects(cluster_plan("cpu-tiny", HOST_PATH), "pair") if obj["kind"] == "Deployment"]
    assert first == single["metadata"]["name"] == by_unit["Service", "gateway"]["metadata"]["name"]
    assert len({first, second, gateway}) == 3


def test_deployments_and_services_select_only_their_pods(by_unit: dict[tuple[str, str], Any]) -> None:
    labels = [by_unit["Deployment", unit_name]["spec"]["template"]["metadata"]["labels"] for unit_name in UNITS]
    for unit_name in UNITS:
        for kind, location in (("Deployment", ("selector", "matchLabels")), ("Service", ("selector",))):
            selector = by_unit[kind, unit_name]["spec"]
            for key in location:
                selector = selector[key]
            assert [selector.items() <= label.items() for label in labels] == [unit_name == other for other in UNITS]


def test_gateway_discovers_only_replicas_of_its_server(by_unit: dict[tuple[str, str], Any]) -> None:
    args = container(by_unit, "gateway")["args"]
    selector = dict(word.split("=") for word in args[args.index("--selector") + 1 :][:2])
    selected = [
        selector.items() <= by_unit["Deployment", unit_name]["spec"]["template"]["metadata"]["labels"].items()
        for unit_name in UNITS
    ]
    assert selected == [True, True, False]
    assert args[args.index("--service-discovery-namespace") + 1] == "serving"
    assert "--worker-urls" not in args


def test_only_gateway_reaches_replicas(by_unit: dict[tuple[str, str], Any]) -> None:
    gateway = by_unit["Deployment", "gateway"]["spec"]["template"]["metadata"]["labels"]
    for unit_name in UNITS[:2]:
        rule, for_metrics = by_unit["NetworkPolicy", unit_name]["spec"]["ingress"]
        (source,) = rule["from"]
        assert source.keys() == {"podSelector"}, "not of another namespace"
        assert source["podSelector"]["matchLabels"].items() <= gateway.items()
        assert by_unit["Service", unit_name]["spec"]["type"] == "ClusterIP"
        assert for_metrics["from"] == MONITORING
    rule, for_metrics = by_unit["NetworkPolicy", "gateway"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"deploy.client": "true"}}}]
    assert for_metrics["from"] == MONITORING


def test_prometheus_reaches_only_metrics_port_of_gateway(by_unit: dict[tuple[str, str], Any]) -> None:
    rule, for_metrics = by_unit["NetworkPolicy", "gateway"]["spec"]["ingress"]
    args, ports = (container(by_unit, "gateway")[key] for key in ("args", "ports"))
    (port,) = (port_["containerPort"] for port_ in ports if port_["name"] == "metrics")
    assert args[args.index("--prometheus-port") + 1] == str(port) != str(rule["ports"][0]["port"])
    assert args[args.index("--prometheus-host") + 1] == "0.0.0.0"
    assert for_metrics["ports"] == [{"protocol": "TCP", "port": port}]
    unmonitored = {
        (obj["kind"], obj["metadata"]["labels"].get("deploy.unit", "")): obj
        for obj in all_objects(cluster_plan("mi355x-tp4x2", HOST_PATH))
    }
    args = container(unmonitored, "gateway")["args"]
    assert args[args.index("--prometheus-host") + 1] == "127.0.0.1"
    assert [len(unmonitored["NetworkPolicy", unit_name]["spec"]["ingress"]) for unit_name in UNITS] == [1, 1, 1]


def test_only_gateway_has_a_service_account(
    by_unit: dict[tuple[str, str], Any],
) -> None:
    assert [kind for kind, _ in by_unit if "Cluster" in kind] == []
    assert by_unit["Role", "gateway"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    binding = by_unit["RoleBinding", "gateway"]
    assert binding["roleRef"]["name"] == by_unit["Role", "gateway"]["metadata"]["name"]
    account = by_unit["ServiceAccount", "gateway"]["metadata"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    pods = {unit_name: by_unit["Deployment", unit_name]["spec"]["template"]["spec"] for unit_name in UNITS}
    assert pods["gateway"]["serviceAccountName"] == account["name"]
    assert [pods[unit_name]["automountServiceAccountToken"] for unit_name in UNITS] == [False, False, True]


def test_only_replicas_have_disruption_budgets(by_unit: dict[tuple[str, str], Any]) -> None:
    assert [unit_name for unit_name in UNITS if ("PodDisruptionBudget", unit_name) in by_unit] == [
        "replica-1",
        "replica-2",
    ]


def test_liveness_probe_respects_unhealthy_after() -> None:
    """The time between the first and the last failing probe covers `unhealthy_after`."""
    for seconds in (2, 20, 300, 301):
        plan = cluster_plan("cpu-tiny", *CASES["cpu-tiny"], f"restart_policy.unhealthy_after={seconds}")
        (deployment,) = (obj for obj in all_objects(plan) if obj["kind"] == "Deployment")
        probe = deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
        assert probe["timeoutSeconds"] < probe["periodSeconds"], "each probe ends before the next one starts"
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) == hang_seconds(plan) >= seconds


def test_labeling_is_retried_when_pod_was_replaced(tmp_path: Path) -> None:
    """kubectl lists the pods of a selector and then labels each; a pod may be deleted in between."""
    missing = CompletedProgram(argv=(), code=1, stdout="", stderr='Error from server (NotFound): pods "a-1" not found')
    results = iter((missing, CompletedProgram(argv=(), code=0, stdout="pod/a-2 labeled", stderr="")))
    cluster = cast("Cluster", SimpleNamespace(ask=lambda *_: next(results)))
    runtime = KubernetesRuntime(Home(tmp_path))
    fields = {"profile": "p", "plan_digest": "", "url": "", "run_dir": str(tmp_path)}
    unit = Unit(runtime="kubernetes", name="pair", runtime_id="one", **fields)
    runtime._replicas["one"] = ReplicaRef(cluster, "replica-1")
    runtime.set_routable(unit, routable=False)
    assert next(results, None) is None
