"""The security contexts of a pod, by Pod Security Standard.

By default a pod is `restricted`, but `baseline` on AMD, where /dev/kfd belongs to a group whose id only the node knows
(`kubernetes.supplemental_groups`). Kubernetes needs less than the hardware's options for Docker: ROCm's guide calls
`seccomp=unconfined` optional (rocm.docs.amd.com, install-on-linux, how-to/docker), and libhsakmt continues if seccomp
blocks `mbind` (src/fmm.c, bind_mem_to_numa). This project has never run such a pod on an AMD GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.plan.networks import transfer_uses_rdma
from orchestrator.plan.plan import Plan
from orchestrator.plan.units import Role
from orchestrator.runtimes.kubernetes.record import cluster_of, node_checkpoint

LEVELS: Final = ("privileged", "baseline", "restricted")
HOME: Final = "/home/deploy"  # an emptyDir for compiled kernels, in a pod that does not run as root
_UNPRIVILEGED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, kw_only=True)
class PodSecurity:
    """The security contexts of a pod and its containers, and settings for a user without an account in the image."""

    pod: Mapping[str, Any]
    container: Mapping[str, Any]
    env: Mapping[str, str]

    @property
    def key_mode(self) -> int:
        """The mode of the API key's file: readable by all unless the user is root, its owner; a pod has one user."""
        return 0o444 if self.env else 0o400


def uses_host_network(plan: Plan) -> bool:
    """Return whether a server uses its nodes' network: its ranks are on several nodes, or its KV cache uses RDMA."""
    return plan.layout.nodes > 1 or (plan.role is not Role.SERVER and transfer_uses_rdma(plan))


def level_of(plan: Plan) -> str:
    """Return the Pod Security Standard of a plan's containers."""
    if uses_host_network(plan) and plan.gpus:
        return "privileged"
    return cluster_of(plan).pod_security or ("baseline" if plan.hardware.vendor == "amd" else "restricted")


def required_level(plan: Plan) -> tuple[str, str]:
    """Return the level that the namespace must admit, and the reason."""
    level = level_of(plan)
    if on_host := [replica for replica in plan.servers.values() if uses_host_network(replica)]:
        multi_node = any(replica.layout.nodes > 1 for replica in on_host)
        reason = "the ranks are on several nodes" if multi_node else "the KV cache crosses by RDMA"
        return "privileged", f"the network of the node, and with GPUs /dev/infiniband: {reason}"
    if level != "privileged" and (node_checkpoint(plan) or cluster_of(plan).weights.host_path):
        return "privileged", f"the checkpoint is in a directory of the node (hostPath); with a claim it is {level}"
    reasons = {
        "restricted": "no root, no capabilities, the runtime's seccomp profile",
        "baseline": "the image's user, root, without capabilities; `kubernetes.pod_security: restricted` also "
        "needs the ids of the groups of /dev/kfd and /dev/dri/renderD* in `kubernetes.supplemental_groups`",
        "privileged": "the container options of the hardware, as in Docker",
    }
    return level, reasons[level]


def pod_security(plan: Plan, level: str) -> PodSecurity:
    """Return the security contexts for a level. Groups are ids, since a node does not know their names."""
    cluster, needs = cluster_of(plan), plan.hardware.container
    groups = sorted({*cluster.supplemental_groups, *(int(group) for group in needs.groups if group.isdigit())})
    pod: dict[str, Any] = {"supplementalGroups": groups} if groups else {}
    if level == "privileged":
        if "seccomp=unconfined" in needs.security_opt:
            pod["seccompProfile"] = {"type": "Unconfined"}
        if uses_host_network(plan):  # only a privileged container can open a device from a hostPath
            return PodSecurity(pod=pod, container={"privileged": True}, env={})
        return PodSecurity(pod=pod, container={"capabilities": {"add": needs.cap_add}} if needs.cap_add else {}, env={})
    if level == "baseline":
        return PodSecurity(pod=pod, container=_UNPRIVILEGED, env={})
    pod |= {"runAsNonRoot": True, "runAsUser": cluster.run_as_user, "seccompProfile": {"type": "RuntimeDefault"}}
    return PodSecurity(pod=pod, container=_UNPRIVILEGED, env={"HOME": HOME, "USER": "deploy"})
