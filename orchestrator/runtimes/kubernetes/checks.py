"""Preflight checks of a cluster without a survey of its nodes: kubectl, permissions, nodes, claims, Secrets."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.hosts.report import Finding, fail, info, info_if, warn
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.pod import cluster_of, gpus_asked
from orchestrator.runtimes.kubernetes.security import LEVELS, required_level

LWS_SITE: Final = "lws.sigs.k8s.io/docs/installation"
_ENFORCED: Final = "pod-security.kubernetes.io/enforce"


def cluster_findings(plan: Plan) -> Iterator[Finding]:
    """Yield the findings of all checks; if the cluster does not answer, only that finding."""
    settings = cluster_of(plan)
    cluster = Cluster(settings.context or "", settings.namespace)
    try:
        version = cluster.json("get", "--raw", "/version").get("gitVersion", "")
        yield info("cluster", str(version), "a cluster that responds")
        if any(replica_plan.layout.nodes > 1 for replica_plan in replica_plans(plan)):
            yield _leader_worker_set(cluster, plan)
        yield from _rights(cluster, plan)
        yield from _nodes(cluster, plan)
        for kind, name in (("persistentvolumeclaim", settings.weights.pvc), ("secret", settings.api_key_secret)):
            if name is not None:
                yield _there(cluster, kind, name)
    except HostError as error:
        yield fail("cluster", error.message, "a cluster that responds", error.hint)


def _leader_worker_set(cluster: Cluster, plan: Plan) -> Finding:
    """Return why `up` starts no server on several nodes: a LeaderWorkerSet does, and `kubectl apply` creates it."""
    needed, crd = "LeaderWorkerSet, for a server on several nodes", "leaderworkersets.leaderworkerset.x-k8s.io"
    if not cluster.ask("get", "crd", crd).ok:
        return fail("several nodes", f"no `{crd}` in this cluster", needed, f"install it: {LWS_SITE}")
    hint = f"`deploy render {plan.profile} --runtime kubernetes --output lws`; `kubectl apply -f lws/kubernetes.yaml`"
    return fail("several nodes", "`up` starts servers of one node", needed, hint)


def _rights(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    if not cluster.ask("get", "namespace", cluster.namespace).ok:
        create = Cluster(cluster.context, "default").shown("create", "namespace", cluster.namespace)
        yield fail("namespace", f"no `{cluster.namespace}` that you can read", cluster.namespace, create)
    elif not cluster.ask("auth", "can-i", "create", "deployments").ok:
        yield fail(
            "rights",
            "you are not permitted to create deployments",
            "create, patch, delete",
            "ask the cluster's administrator",
        )
    else:
        yield info("namespace", cluster.namespace, "you are permitted to create deployments")
        yield from _pod_security(cluster, plan)


def _pod_security(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if the namespace's own label admits only pods of a stricter level."""
    labels = cluster.json("get", "namespace", cluster.namespace)["metadata"].get("labels", {})
    enforced, (level, reason) = labels.get(_ENFORCED), required_level(plan)
    if enforced in LEVELS and LEVELS.index(enforced) > LEVELS.index(level):
        change = cluster.shown("label", "namespace", cluster.namespace, f"{_ENFORCED}={level}", "--overwrite")
        yield fail("pod security", f"the namespace admits {enforced}", f"{level}: {reason}", change)


def _nodes(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    """Yield a finding about the nodes that fit the server when empty. An autoscaled cluster may have none yet."""
    selector = ",".join(cluster_of(plan).node_selector)
    try:
        nodes = cluster.json("get", "nodes", *(["--selector", selector] if selector else []))["items"]
    except HostError:  # without the permission to list nodes
        return
    requested = Counter(
        gpus_asked(replica_plan) for replica_plan in replica_plans(plan) for _ in range(replica_plan.layout.nodes)
    )
    resource, most = max(requested)
    free = [int(node["status"].get("allocatable", {}).get(resource, 0)) for node in nodes]
    fitting = sum(gpus >= most for gpus in free)
    needed = " and ".join(
        (f"{count} {resource} on one node" if count else "a node") + (f", {times} times" if times > 1 else "")
        for (_, count), times in requested.items()
    )
    found = f"{fitting} of {len(nodes)} nodes" + (f" with `{selector}`" if selector else "")
    enough = fitting > 0 and _all_fit(free, sorted((count for _, count in requested.elements()), reverse=True))
    hint = f"{cluster.shown('describe', 'nodes')} shows their device plugin, labels and taints"
    yield info_if(enough, warn, "nodes", found, needed, hint)


def _all_fit(free: list[int], counts: Iterable[int]) -> bool:
    """Return whether nodes with so many free GPUs hold the pods, the largest first, each on the fullest that fits."""
    left = list(free)
    for count in counts:
        if (room := min((gpus for gpus in left if gpus >= count), default=None)) is None:
            return False
        left[left.index(room)] -= count
    return True


def _there(cluster: Cluster, kind: str, name: str) -> Finding:
    found = cluster.json("get", kind, name, "--ignore-not-found")
    if not found:
        return fail(kind, "not there", name, f"create it in namespace `{cluster.namespace}`")
    phase = str(found.get("status", {}).get("phase", "there"))
    if phase == "Pending":
        return warn(kind, "not bound", name, f"{cluster.shown('describe', kind, name)} shows why it is pending")
    return info(kind, phase.lower(), name)
