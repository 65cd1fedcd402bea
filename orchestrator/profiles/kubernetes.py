"""The `kubernetes` section of a profile: placement, resources and access of the server's pods.

Labels and taints have kubectl's form, `key=value` and `key=value:NoSchedule`, so that `--set` can set them too: `--set
kubernetes.node_selector=[amd.com/gpu.device-id=75a3]`.
"""

from math import ceil
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from orchestrator.core.validation import AbsolutePath, StrictModel, Text, TextOrNumber, Word

# Valid names and labels of the API server (apimachinery, pkg/util/validation/validation.go).
_NAME: Final = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_KEY: Final = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"


# A size in the syntax of Kubernetes (apimachinery, resource.Quantity), or a number of bytes.
Quantity: TypeAlias = Annotated[TextOrNumber, Field(pattern=r"^[0-9]{1,18}(\.[0-9]{1,9})?([kMGT]|[KMGT]i)?$")]
ObjectName: TypeAlias = Annotated[str, Field(pattern=f"^{_NAME}$")]
Label: TypeAlias = Annotated[str, Field(pattern=f"^{_KEY}={_VALUE}$")]
Taint: TypeAlias = Annotated[
    str, Field(pattern=f"^{_KEY}(={_VALUE})?:(NoSchedule|PreferNoSchedule|NoExecute)$", max_length=400)
]


class KubernetesWeights(StrictModel):
    """Where the pods find the checkpoint, in a directory `MODEL`. The operator of the cluster fills it."""

    pvc: ObjectName | None = Field(default=None, description="PersistentVolumeClaim with a directory per checkpoint")
    host_path: AbsolutePath | None = Field(
        default=None, description="directory of the nodes with a directory per checkpoint"
    )

    @model_validator(mode="after")
    def _is_one_location(self) -> "KubernetesWeights":
        if self.pvc and self.host_path:
            raise ValueError("`pvc` and `host_path` are mutually exclusive")
        return self


class Autoscaling(StrictModel):
    """Autoscaling with KEDA: the number of replicas, and when another starts."""

    max: int = Field(ge=2, le=64, description="most replicas")
    prometheus: Text = Field(pattern=r"^https?://", description="URL of Prometheus")
    start_seconds: int = Field(ge=1, description="last start; see `deploy status`")
    growth_rps_per_minute: float = Field(ge=0, description="fastest growth of requests/s")
    replica_rps: float = Field(gt=0, description="requests/s of one replica; see `deploy bench`")
    waiting_requests: float = Field(default=5, gt=0, description="waiting requests per replica")
    cache_usage: float = Field(default=0.8, gt=0, le=1, description="share of the KV cache in use")

    @property
    def min_replicas(self) -> int:
        """The smallest number of replicas: one, and those for the load that grows while another starts."""
        return 1 + ceil(self.growth_rps_per_minute * self.start_seconds / 60 / self.replica_rps)


class KubernetesSection(StrictModel):
    """Settings of a server in a Kubernetes cluster."""

    context: Word | None = Field(default=None, description="kubeconfig context; default: the current one")
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = Field(
        default="default", description="namespace"
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="`Never`: the nodes have the image"
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(default=(), description="Secrets for the registry")
    node_selector: tuple[Label, ...] = Field(
        default=(), description="node labels, such as `amd.com/gpu.device-id=75a3`"
    )
    tolerations: tuple[Taint, ...] = Field(
        default=(), description="taints to tolerate, such as `amd.com/gpu:NoSchedule`"
    )
    supplemental_groups: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="group ids of the GPUs' device nodes, without root"
    )
    pod_security: Literal["restricted", "baseline", "privileged"] | None = Field(
        default=None, description="Pod Security Standard; default: baseline on AMD, else restricted"
    )
    run_as_user: int = Field(default=1000, ge=1, le=2**31 - 1, description="user id of `restricted` pods")
    cpu: float | None = Field(default=None, gt=0, description="requested cores; default: 2 per GPU, limit 10")
    memory: Quantity | None = Field(
        default=None, description="request and limit, such as `512Gi`; default: 6 to 20 GB per GPU and more"
    )
    runtime_class: ObjectName | None = Field(default=None, description="RuntimeClass, such as `nvidia`")
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="type of the Service"
    )
    allowed_clients: tuple[Label, ...] = Field(
        default=("deploy.client=true",), description="labels of pods that may reach the server, same namespace"
    )
    allowed_scrapers: tuple[Label, ...] = Field(
        default=(),
        description="labels of the namespace that may read metrics, such as `kubernetes.io/metadata.name=monitoring`",
    )
    api_key_secret: ObjectName | None = Field(
        default=None, description="Secret whose `config.yaml` has the API key; default: `up` creates one"
    )
    pending_timeout: int = Field(
        default=30, ge=0, le=86_400, description="seconds that `up` waits for a node, image or volume"
    )
    weights: KubernetesWeights = Field(default=KubernetesWeights(), description="location of the checkpoint")
    autoscaling: Autoscaling | None = Field(default=None, description="let KEDA change the number of replicas")
