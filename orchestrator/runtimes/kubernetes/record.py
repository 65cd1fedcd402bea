"""The record of a server: names, labels and annotations of its objects. Also paths and GPU counts of its pods."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.runtimes.kubernetes.kubectl import Cluster, Forward
from orchestrator.runtimes.labels import GATEWAY, NAME, UNIT, record_of
from orchestrator.runtimes.replicas import in_order, role_of

ROLE: Final = "deploy.role"
REPLICA: Final = "replica"  # the role of replicas, unlike prefill and decode servers
OURS: Final = "app.kubernetes.io/managed-by=deploy"
_MANAGER: Final = "app.kubernetes.io/managed-by"
# A DNS label has at most 63 characters, and a replica appends its unit name.
_MAX_NAME: Final = 48
MODELS: Final = "/models"  # checkpoints by name, inside a pod
CONTAINER: Final = "server"
CHECKPOINT: Final = "checkpoint"  # the init container that checks for the checkpoint in the claim
ARGUMENTS: Final = "arguments"  # the init container in which the engine validates the arguments, without a GPU
PORT: Final = "http"  # the name of the server's port in a pod
METRICS_PORT: Final = "metrics"  # the name of the port for the gateway's own metrics
CONFIG: Final = "config.yaml"  # the key of the Secret that holds sglang's `--config` file
_RESOURCES: Final = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}  # names used by the device plugins


@dataclass
class ReplicaRef:
    """A server or a replica in a cluster; `unit_name` is "" for a server without replicas."""

    cluster: Cluster
    unit_name: str
    forward: Forward | None = None
    pending_timeout: float = inf  # seconds that its pod may wait for a resource
    stuck_since: float | None = None  # monotonic time at which that wait began


def replica_of(item: Mapping[str, Any]) -> str:
    """Return the replica that an object belongs to, "" for a server without replicas."""
    return str(item["metadata"]["labels"].get(UNIT, ""))


def object_name(name: str, unit_name: str = "") -> str:
    """Return the name of the objects of the server `name`: the same, if it is a DNS label (for a Service: RFC 1035).

    An invalid or long name is cut and gets a digest that keeps it unique. The unit name of a replica follows after two
    dashes, which no server name contains. A gateway's objects are named like those of a server without replicas.
    """
    if unit_name and unit_name != GATEWAY:
        return f"{object_name(name)}--{unit_name}"
    normalized = re.sub(r"[._]", "-", name)
    if normalized == name and name[0].isalpha() and len(name) <= _MAX_NAME:
        return name
    return f"deploy-{normalized[:30].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def deployment_name(name: str, unit_name: str = "") -> str:
    """Return the name of the Deployment of a server or of a replica.

    The first Deployment of a start has the server's own name, even with replicas, so that the API server accepts only
    one start of that name.
    """
    if unit_name == GATEWAY:
        return f"{object_name(name)}--{GATEWAY}"
    is_first = in_order(unit_name) == (False, 1)  # replica 1, or prefill server 1
    return object_name(name) if is_first else object_name(name, unit_name)


def labels(name: str, unit_name: str = "") -> dict[str, str]:
    """Return the labels of every object of a server or of a replica."""
    return {NAME: name, _MANAGER: "deploy"} | ({UNIT: unit_name, ROLE: role_label(unit_name)} if unit_name else {})


def role_label(unit_name: str) -> str:
    """Return the role in the labels of the gateway, a replica, or a prefill or decode server."""
    return (
        GATEWAY if unit_name == GATEWAY else REPLICA if role_of(unit_name) is Role.SERVER else role_of(unit_name).value
    )


def selected(name: str, unit_name: str = "") -> dict[str, str]:
    """Return the labels that select a server's pod."""
    return {NAME: name} | ({UNIT: unit_name} if unit_name else {})


def selector(name: str, unit_name: str = "") -> str:
    """Return the kubectl selector of a server's objects, with the label that all objects of this tool have."""
    return ",".join((*(f"{label}={value}" for label, value in selected(name, unit_name).items()), OURS))


def annotations(plan: Plan, name: str, namespace: str, unit_name: str = "") -> dict[str, str]:
    """Return the annotations of the record. They are not labels, since a digest exceeds a label's 63 characters."""
    return record_of(plan, f"http://{object_name(name, unit_name)}.{namespace}.svc:{plan.server.port}")


def pairs(written: tuple[str, ...]) -> Mapping[str, str]:
    """Return labels of the form `key=value` as a mapping."""
    return dict(label.split("=", 1) for label in written)


def cluster_of(plan: Plan) -> KubernetesSection:
    """Return the Kubernetes section of a plan for this runtime."""
    assert plan.kubernetes is not None  # noqa: S101 - for the type: such a plan has the section
    return plan.kubernetes


def secret_name(plan: Plan, name: str) -> str:
    """Return the name of the Secret with a server's API key."""
    return cluster_of(plan).api_key_secret or f"{object_name(name)}-key"


def requested_gpus(plan: Plan) -> tuple[str, int]:
    """Return the device plugin's resource and the number of GPUs, from GPU 0 to the ranks' last one."""
    return _RESOURCES.get(plan.hardware.vendor, ""), plan.gpus[-1] + 1 if plan.gpus else 0


def node_checkpoint(plan: Plan) -> str | None:
    """Return the directory of a local checkpoint on the node; None if `kubernetes.weights` names its location."""
    weights, checkpoint = cluster_of(plan).weights, plan.model.checkpoint
    return checkpoint.path if checkpoint.source == "local" and not (weights.pvc or weights.host_path) else None


def model_path(plan: Plan) -> str:
    """Return the path of the checkpoint in a pod."""
    return f"{MODELS}/{plan.model.name}"


def copy_to_claim(plan: Plan) -> str:
    """Return the instruction to copy the checkpoint into the plan's PVC; `deploy` does not copy it."""
    source = plan.model.checkpoint
    if source.source == "generated":
        origin = f"the checkpoint that `deploy stage {plan.profile}` makes"
    else:
        origin = f"`{source.path}`" + (f", revision `{source.revision}`," if source.source == "hub" else "")
    return f"copy {origin} to its directory `{plan.model.name}`"
