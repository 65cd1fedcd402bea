"""The `kubernetes` section of a profile: placement, resources and access of the server's pods.

Labels and taints have kubectl's form, `key=value` and `key=value:NoSchedule`, so that `--set` can set them too: `--set
kubernetes.node_selector=[amd.com/gpu.device-id=75a3]`.
"""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from orchestrator.core.validation import AbsolutePath, StrictModel, Word
from orchestrator.profiles.sizes import Quantity

# Valid names and labels of the API server (apimachinery, pkg/util/validation/validation.go).
_NAME: Final = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_KEY: Final = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"

ObjectName: TypeAlias = Annotated[str, Field(pattern=f"^{_NAME}$")]
Label: TypeAlias = Annotated[str, Field(pattern=f"^{_KEY}={_VALUE}$")]
Taint: TypeAlias = Annotated[
    str, Field(pattern=f"^{_KEY}(={_VALUE})?:(NoSchedule|PreferNoSchedule|NoExecute)$", max_length=400)
]


class KubernetesWeights(StrictModel):
    """Where the pods find the checkpoint, `MODEL` in there; whoever runs the cluster brings it."""

    pvc: ObjectName | None = Field(default=None, description="PersistentVolumeClaim with the checkpoints by name")
    host_path: AbsolutePath | None = Field(
        default=None, description="directory of the nodes, or a mounted share, with the checkpoints by name"
    )

    @model_validator(mode="after")
    def _is_one_place(self) -> "KubernetesWeights":
        if self.pvc and self.host_path:
            raise ValueError("`pvc` and `host_path` are two places: name one")
        return self


class KubernetesSection(StrictModel):
    """How a cluster runs the server."""

    context: Word | None = Field(default=None, description="context of your kubeconfig; default: its current one")
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = Field(
        default="default", description="namespace of all objects"
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="`Never` if the nodes already have the image; it then needs no registry"
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(default=(), description="Secrets to pull the image with")
    node_selector: tuple[Label, ...] = Field(
        default=(),
        description="labels of the nodes to run on, such as `amd.com/gpu.device-id=75a3` of AMD's node labeler",
    )
    tolerations: tuple[Taint, ...] = Field(
        default=(), description="taints to tolerate, such as `amd.com/gpu:NoSchedule`"
    )
    supplemental_groups: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="ids of the groups that own the GPUs' device nodes, if the image does not run as root"
    )
    pod_security: Literal["restricted", "baseline", "privileged"] | None = Field(
        default=None, description="Pod Security Standard of the containers; default: baseline on AMD, else restricted"
    )
    run_as_user: int = Field(default=1000, ge=1, le=2**31 - 1, description="user id of pods that are `restricted`")
    cpu: float | None = Field(default=None, gt=0, description="requested CPU cores; default: 2 per GPU, limit 10")
    memory: Quantity | None = Field(
        default=None,
        description="requested memory, also the limit, such as `512Gi`; default: 6 to 20 GB per GPU and more",
    )
    runtime_class: ObjectName | None = Field(default=None, description="RuntimeClass of the pod, such as `nvidia`")
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="type of the Service, which decides who can reach it"
    )
    allowed_clients: tuple[Label, ...] = Field(
        default=("deploy.client=true",), description="labels of the pods of its namespace that may reach the server"
    )
    allowed_scrapers: tuple[Label, ...] = Field(
        default=(),
        description="labels of another namespace whose pods may read metrics, such as "
        "`kubernetes.io/metadata.name=monitoring` of a Prometheus there",
    )
    api_key_secret: ObjectName | None = Field(
        default=None, description="Secret with the API key, in its key `config.yaml`; default: a Secret of the server"
    )
    pending_timeout: int = Field(
        default=30,
        ge=0,
        le=86_400,
        description="seconds that `up` waits for a node, an image or a volume that is not available",
    )
    weights: KubernetesWeights = Field(default=KubernetesWeights(), description="location of the checkpoint")
