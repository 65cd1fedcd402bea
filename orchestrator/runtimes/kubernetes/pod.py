"""Names, paths and GPU counts of a plan's pods that are needed outside the manifests."""

from typing import Final

from orchestrator.plan.plan import Plan
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.runtimes.kubernetes.record import object_name

MODELS: Final = "/models"  # checkpoints by name, inside a pod
CONTAINER: Final = "server"
CHECKPOINT: Final = "checkpoint"  # the init container that checks for the checkpoint in the claim
ARGUMENTS: Final = "arguments"  # the init container in which the engine validates the arguments, without a GPU
PORT: Final = "http"  # the name of the server's port in a pod
METRICS_PORT: Final = "metrics"  # the name of the port for the gateway's own metrics
CONFIG: Final = "config.yaml"  # the key of the Secret that holds sglang's `--config` file
_RESOURCES: Final = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}  # names used by the device plugins


def cluster_of(plan: Plan) -> KubernetesSection:
    """Return the Kubernetes section of a plan for that runtime."""
    assert plan.kubernetes is not None  # noqa: S101 - for the type: the section has the name of the runtime
    return plan.kubernetes


def secret_name(plan: Plan, name: str) -> str:
    """Return the name of the Secret with the API key of a server."""
    return cluster_of(plan).api_key_secret or f"{object_name(name)}-key"


def requested_gpus(plan: Plan) -> tuple[str, int]:
    """Return the device plugin's resource, and the count: up to the last GPU of the ranks, whichever is the first."""
    return _RESOURCES.get(plan.hardware.vendor, ""), plan.gpus[-1] + 1 if plan.gpus else 0


def node_checkpoint(plan: Plan) -> str | None:
    """Return the directory of a local checkpoint on the node; None if `kubernetes.weights` says where it is."""
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
