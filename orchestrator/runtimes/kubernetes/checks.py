"""Preflight checks of a cluster: kubectl, permissions, nodes, claims, Secrets. They do not survey the nodes."""

from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.hosts.report import Finding, fail, info, info_if, warn
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.record import cluster_of, requested_gpus
from orchestrator.runtimes.kubernetes.security import LEVELS, required_level

_ENFORCED: Final = "pod-security.kubernetes.io/enforce"


def cluster_findings(plan: Plan) -> Iterator[Finding]:
    """Yield the findings of all checks; if the cluster stops answering, that finding is the last."""
    settings = cluster_of(plan)
    cluster = Cluster(settings.context or "", settings.namespace)
    try:
        version = cluster.json("get", "--raw", "/version").get("gitVersion", "")
        yield info("cluster", str(version), "a cluster that responds")
        yield from _rights(cluster, plan)
        yield from _nodes(cluster, plan)
        for kind, name in (("persistentvolumeclaim", settings.weights.pvc), ("secret", settings.api_key_secret)):
            if name is not None:
                yield _exists(cluster, kind, name)
    except HostError as error:
        yield fail("cluster", error.message, "a cluster that responds", error.hint)


def _rights(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    namespace = cluster.ask("get", "namespace", cluster.namespace, "--output", "json")
    if not namespace.ok:
        create = Cluster(cluster.context, "default").command_text("create", "namespace", cluster.namespace)
        yield fail("namespace", f"no `{cluster.namespace}` that you can read", cluster.namespace, create)
    elif not cluster.ask("auth", "can-i", "create", "deployments").ok:
        value, hint = "you are not permitted to create deployments", "ask the cluster's administrator"
        yield fail("rights", value, "create, patch, delete", hint)
    else:
        yield info("namespace", cluster.namespace, "you are permitted to create deployments")
        yield from _pod_security(cluster, plan, cluster.read(namespace)["metadata"].get("labels", {}))


def _pod_security(cluster: Cluster, plan: Plan, labels: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if the namespace's own label admits only pods of a stricter level."""
    enforced, (level, reason) = labels.get(_ENFORCED), required_level(plan)
    if enforced in LEVELS and LEVELS.index(enforced) > LEVELS.index(level):
        change = cluster.command_text("label", "namespace", cluster.namespace, f"{_ENFORCED}={level}", "--overwrite")
        yield fail("pod security", f"the namespace admits {enforced}", f"{level}: {reason}", change)


def _nodes(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    """Yield a finding about the nodes that fit the largest pod when empty. An autoscaled cluster may have none yet."""
    selector = ",".join(cluster_of(plan).node_selector)
    try:
        nodes = cluster.json("get", "nodes", *(["--selector", selector] if selector else []))["items"]
    except HostError:  # no permission to list nodes
        return
    resource, count = max(map(requested_gpus, plan.servers.values()))
    fitting = sum(int(node["status"].get("allocatable", {}).get(resource, 0)) >= count for node in nodes)
    value = f"{fitting} of {len(nodes)} nodes" + (f" with `{selector}`" if selector else "")
    needed = f"{count} {resource} on one node" if count else "a node"
    hint = f"{cluster.command_text('describe', 'nodes')} shows their device plugin, labels and taints"
    yield info_if(fitting > 0, warn, "nodes", value, needed, hint)


def _exists(cluster: Cluster, kind: str, name: str) -> Finding:
    item = cluster.json("get", kind, name, "--ignore-not-found")
    if not item:
        return fail(kind, "not found", name, f"create it in namespace `{cluster.namespace}`")
    phase = str(item.get("status", {}).get("phase", "found"))
    if phase == "Pending":
        return warn(kind, "not bound", name, f"{cluster.command_text('describe', kind, name)} shows why it is pending")
    return info(kind, phase.lower(), name)
