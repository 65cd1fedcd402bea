"""Ways to run a server: one folder and one line below for each; a runtime is imported when it is used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Runtime

REGISTRY: Final[Mapping[str, str]] = {
    "docker": "orchestrator.runtimes.docker.runtime:DockerRuntime",
    "kubernetes": "orchestrator.runtimes.kubernetes.runtime:KubernetesRuntime",
    "process": "orchestrator.runtimes.process.runtime:ProcessRuntime",
    "slurm": "orchestrator.runtimes.slurm.runtime:SlurmRuntime",
}


def runtime_class(name: str) -> type[Runtime]:
    """The class of a runtime."""
    module, _, attribute = REGISTRY[name].partition(":")
    found: type[Runtime] = getattr(import_module(module), attribute)
    return found


def open_runtime(name: str, home: Home, host: str | None = None) -> Runtime:
    """A runtime over the servers of this machine, or of the far machine `host`."""
    return runtime_class(name)(home, host)
