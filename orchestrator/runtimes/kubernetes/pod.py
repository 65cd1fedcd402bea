"""What a plan says of its pods: names, places and figures that are asked for beside its manifests."""

from typing import Final

from orchestrator.plan.plan import Plan
from orchestrator.profiles.kubernetes import KubernetesSection
from orchestrator.runtimes.kubernetes.record import object_name

MODELS: Final = "/models"  # in a pod: checkpoints by name
CONTAINER: Final = "server"
CHECKPOINT: Final = "checkpoint"  # the init container that looks whether the claim holds it
PORT: Final = "http"  # what a pod calls it
METRICS_PORT: Final = "metrics"  # that of a gateway's own counters
CONFIG: Final = "config.yaml"  # the key of a Secret that is sglang's `--config` file
_RESOURCES: Final = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu"}  # of the device plugins of both


def cluster_of(plan: Plan) -> KubernetesSection:
    """How a cluster runs a plan that was made for one."""
    assert plan.kubernetes is not None  # noqa: S101 - for the type: the section is called as the runtime is
    return plan.kubernetes


def secret_name(plan: Plan, name: str) -> str:
    """The Secret with the API key of a server."""
    return cluster_of(plan).api_key_secret or f"{object_name(name)}-key"


def gpus_asked(plan: Plan) -> tuple[str, int]:
    """The device plugin's resource, and how many: up to the last one that the ranks take, whichever the first is."""
    return _RESOURCES.get(plan.hardware.vendor, ""), plan.gpus[-1] + 1 if plan.gpus else 0


def model_path(plan: Plan) -> str:
    """Where a pod finds the checkpoint."""
    return f"{MODELS}/{plan.model.name}"
