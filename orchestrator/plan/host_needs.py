"""CPUs and memory that a server needs on its host, for clusters with shared nodes.

The values per GPU come from vLLM's manifests (vllm-project/vllm@051f9b87, docs/deployment/k8s.md): requests of 2 CPUs
and 6 GB, limits of 10 CPUs and 20 GB. sglang publishes none (its docker/k8s-sglang-service.yaml requests a GPU).
"""

from dataclasses import dataclass
from typing import Final

from orchestrator.plan.plan import Plan

_CPUS: Final = (2, 10)  # per GPU
_MEMORY: Final = (6 * 10**9, 20 * 10**9)  # per GPU


@dataclass(frozen=True, kw_only=True)
class HostNeeds:
    """A server's requests and limits of CPUs and of memory in bytes.

    The memory limit includes the weights: they are in the page cache while each rank reads its shard.
    """

    cpus: int
    max_cpus: int
    memory: int
    max_memory: int


def mebibytes(size: int) -> int:
    """Convert bytes to MiB, rounded up: Slurm's `M`, Kubernetes' `Mi`."""
    return -(-size // 1024**2)


def ranks_per_node(plan: Plan) -> int:
    """Return the number of ranks of one server on each node."""
    return max(plan.layout.gpus * plan.serving.stages // plan.layout.nodes, 1)


def host_needs(plan: Plan) -> HostNeeds:
    """Return the needs of one replica on each node, which are equal for all replicas."""
    ranks = ranks_per_node(plan)
    shared_memory = (plan.hardware.container.shm_bytes or 0) + plan.host_cache_bytes * ranks
    weights = plan.model.weight_bytes
    return HostNeeds(
        cpus=_CPUS[0] * ranks,
        max_cpus=_CPUS[1] * ranks,
        memory=_MEMORY[0] * ranks + shared_memory + (weights if plan.hardware.vendor == "cpu" else 0),
        max_memory=_MEMORY[1] * ranks + shared_memory + weights,
    )
