"""Several servers in a cluster: what each pod is given, who may reach it, and what the gateway may ask."""

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
from orchestrator.runtimes.kubernetes.liveness import hang_seconds
from orchestrator.runtimes.kubernetes.record import ReplicaRef
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime

MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
PARTS = ("replica-1", "replica-2", "gateway")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return cluster_plan("mi355x-tp4x2", *CASES["mi355x-tp4x2"])


@pytest.fixture(scope="module")
def found(plan: Plan) -> dict[tuple[str, str], Any]:
    """Every object by its kind and its part."""
    return {(obj["kind"], obj["metadata"]["labels"]["deploy.unit"]): obj for obj in all_objects(plan, "pair")}


def container(found: dict[tuple[str, str], Any], part: str) -> Any:  # noqa: ANN401 - JSON of the API's shape
    return found["Deployment", part]["spec"]["template"]["spec"]["containers"][0]


def test_each_replica_pod_has_its_own_gpus(plan: Plan, found: dict[tuple[str, str], Any]) -> None:
    first, second = replica_plans(plan)
    assert first == second
    for part in PARTS[:2]:
        assert container(found, part)["resources"]["limits"]["amd.com/gpu"] == "4"
        assert "--base-gpu-id" not in container(found, part)["args"]
        assert container(found, part)["ports"] == [{"name": "http", "containerPort": plan.server.port}]
    assert container(found, "gateway")["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_first_deployment_and_gateway_service_have_server_name(
    found: dict[tuple[str, str], Any],
) -> None:
    first, second, gateway = (found["Deployment", part]["metadata"]["name"] for part in PARTS)
    (single,) = [obj for obj in all_objects(cluster_plan("cpu-tiny", HOST_PATH), "pair") if obj["kind"] == "Deployment"]
    assert first == single["metadata"]["name"] == found["Service", "gateway"]["metadata"]["name"]
    assert len({first, second, gateway}) == 3


def test_deployments_and_services_select_only_their_pods(found: dict[tuple[str, str], Any]) -> None:
    labels = [found["Deployment", part]["spec"]["template"]["metadata"]["labels"] for part in PARTS]
    for part in PARTS:
        for kind, location in (("Deployment", ("selector", "matchLabels")), ("Service", ("selector",))):
            wanted = found[kind, part]["spec"]
            for key in location:
                wanted = wanted[key]
            assert [wanted.items() <= label.items() for label in labels] == [part == other for other in PARTS]


def test_gateway_discovers_only_replicas_of_its_server(found: dict[tuple[str, str], Any]) -> None:
    args = container(found, "gateway")["args"]
    wanted = dict(word.split("=") for word in args[args.index("--selector") + 1 :][:2])
    taken = [
        wanted.items() <= found["Deployment", part]["spec"]["template"]["metadata"]["labels"].items() for part in PARTS
    ]
    assert taken == [True, True, False]
    assert args[args.index("--service-discovery-namespace") + 1] == "serving"
    assert "--worker-urls" not in args


def test_only_gateway_reaches_replicas(found: dict[tuple[str, str], Any]) -> None:
    gateway = found["Deployment", "gateway"]["spec"]["template"]["metadata"]["labels"]
    for part in PARTS[:2]:
        rule, for_metrics = found["NetworkPolicy", part]["spec"]["ingress"]
        (source,) = rule["from"]
        assert source.keys() == {"podSelector"}, "of no other namespace"
        assert source["podSelector"]["matchLabels"].items() <= gateway.items()
        assert found["Service", part]["spec"]["type"] == "ClusterIP"
        assert for_metrics["from"] == MONITORING
    rule, for_metrics = found["NetworkPolicy", "gateway"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"deploy.client": "true"}}}]
    assert for_metrics["from"] == MONITORING


def test_prometheus_reaches_only_metrics_port_of_gateway(found: dict[tuple[str, str], Any]) -> None:
    rule, for_metrics = found["NetworkPolicy", "gateway"]["spec"]["ingress"]
    args, ports = (container(found, "gateway")[key] for key in ("args", "ports"))
    (port,) = (port_["containerPort"] for port_ in ports if port_["name"] == "metrics")
    assert args[args.index("--prometheus-port") + 1] == str(port) != str(rule["ports"][0]["port"])
    assert args[args.index("--prometheus-host") + 1] == "0.0.0.0"
    assert for_metrics["ports"] == [{"protocol": "TCP", "port": port}]
    unwatched = {
        (obj["kind"], obj["metadata"]["labels"].get("deploy.unit", "")): obj
        for obj in all_objects(cluster_plan("mi355x-tp4x2", HOST_PATH))
    }
    args = container(unwatched, "gateway")["args"]
    assert args[args.index("--prometheus-host") + 1] == "127.0.0.1"
    assert [len(unwatched["NetworkPolicy", part]["spec"]["ingress"]) for part in PARTS] == [1, 1, 1]


def test_only_gateway_has_a_service_account(
    found: dict[tuple[str, str], Any],
) -> None:
    assert [kind for kind, _ in found if "Cluster" in kind] == []
    assert found["Role", "gateway"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    binding = found["RoleBinding", "gateway"]
    assert binding["roleRef"]["name"] == found["Role", "gateway"]["metadata"]["name"]
    account = found["ServiceAccount", "gateway"]["metadata"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    pods = {part: found["Deployment", part]["spec"]["template"]["spec"] for part in PARTS}
    assert pods["gateway"]["serviceAccountName"] == account["name"]
    assert [pods[part]["automountServiceAccountToken"] for part in PARTS] == [False, False, True]


def test_only_replicas_have_disruption_budgets(found: dict[tuple[str, str], Any]) -> None:
    assert [part for part in PARTS if ("PodDisruptionBudget", part) in found] == ["replica-1", "replica-2"]


def test_liveness_probe_respects_unhealthy_after() -> None:
    """From the first look that sees no work to the last: the first compares with what it has read itself."""
    for seconds in (2, 20, 300, 301):
        asked = cluster_plan("cpu-tiny", *CASES["cpu-tiny"], f"restart_policy.unhealthy_after={seconds}")
        (deployment,) = (obj for obj in all_objects(asked) if obj["kind"] == "Deployment")
        probe = deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
        assert probe["timeoutSeconds"] < probe["periodSeconds"], "looks that wait would take longer than they say"
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) == hang_seconds(asked) >= seconds


def test_labeling_is_retried_when_pod_was_replaced(tmp_path: Path) -> None:
    """kubectl lists the pods of a selector, then labels each: one may be gone by then."""
    gone = CompletedProgram(argv=(), code=1, stdout="", stderr='Error from server (NotFound): pods "a-1" not found')
    answers = iter((gone, CompletedProgram(argv=(), code=0, stdout="pod/a-2 labeled", stderr="")))
    cluster = cast("Cluster", SimpleNamespace(ask=lambda *_: next(answers)))
    runtime = KubernetesRuntime(Home(tmp_path))
    known = {"profile": "p", "plan_digest": "", "url": "", "run_dir": str(tmp_path)}
    unit = Unit(runtime="kubernetes", name="pair", runtime_id="one", **known)
    runtime._replicas["one"] = ReplicaRef(cluster, "replica-1")
    runtime.set_routable(unit, routable=False)
    assert next(answers, None) is None
