"""The registry of runtimes: one folder and one line below per runtime. Runtimes are imported on first use."""

from collections.abc import Mapping
from typing import Final

from orchestrator.core.imported import import_attribute
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Runtime

REGISTRY: Final[Mapping[str, str]] = {
    "docker": "orchestrator.runtimes.docker.runtime:DockerRuntime",
    "kubernetes": "orchestrator.runtimes.kubernetes.runtime:KubernetesRuntime",
    "process": "orchestrator.runtimes.process.runtime:ProcessRuntime",
    "slurm": "orchestrator.runtimes.slurm.runtime:SlurmRuntime",
}


def runtime_class(name: str) -> type[Runtime]:
    """Return the class of a runtime."""
    kind: type[Runtime] = import_attribute(REGISTRY[name])
    return kind


def open_runtime(name: str, home: Home, host: str | None = None) -> Runtime:
    """Return a runtime for the servers of this host, or of the remote host `host`."""
    return runtime_class(name)(home, host)
