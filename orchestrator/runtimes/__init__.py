"""Ways to run a server: one folder and two lines below for each; a runtime is imported when it is used.

`REGISTRY` has what is particular to each, `open_runtime` the verbs over its servers. Whoever only looks at what runs
needs no more than these: what plans, builds and prepares takes a sixth of a second to import.
`image` is imported by name.
"""

from collections.abc import Callable, Mapping
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.runtimes.base import (
    ENDING,
    LOG,
    Cache,
    EnginePython,
    Handle,
    Place,
    Prepared,
    Queues,
    Runtime,
    RuntimeKind,
    ServerState,
    Shows,
    Status,
    TakenImage,
    UnansweredError,
    since_then,
)
from orchestrator.runtimes.replicas import each_of, run_dirs, start_of


def _docker() -> RuntimeKind:
    from orchestrator.runtimes.docker.spec import DOCKER  # noqa: PLC0415

    return DOCKER


def _kubernetes() -> RuntimeKind:
    from orchestrator.runtimes.kubernetes.spec import KUBERNETES  # noqa: PLC0415

    return KUBERNETES


def _process() -> RuntimeKind:
    from orchestrator.runtimes.process.spec import PROCESS  # noqa: PLC0415

    return PROCESS


def _slurm() -> RuntimeKind:
    from orchestrator.runtimes.slurm.spec import SLURM  # noqa: PLC0415

    return SLURM


REGISTRY: Final[Mapping[str, Callable[[], RuntimeKind]]] = {
    "docker": _docker,
    "kubernetes": _kubernetes,
    "process": _process,
    "slurm": _slurm,
}


def _open_docker(home: Home, host: str | None) -> Runtime:
    from orchestrator.runtimes.docker.runtime import DockerRuntime  # noqa: PLC0415 - the SDK takes 0.1 s

    return DockerRuntime(home, host)


def _open_kubernetes(home: Home, _: str | None) -> Runtime:
    from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime  # noqa: PLC0415

    return KubernetesRuntime(home)


def _open_process(home: Home, _: str | None) -> Runtime:
    from orchestrator.runtimes.process.runtime import ProcessRuntime  # noqa: PLC0415

    return ProcessRuntime(home)


def _open_slurm(home: Home, _: str | None) -> Runtime:
    from orchestrator.runtimes.slurm.runtime import SlurmRuntime  # noqa: PLC0415

    return SlurmRuntime(home)


_OPEN: Final[Mapping[str, Callable[[Home, str | None], Runtime]]] = {
    "docker": _open_docker,
    "kubernetes": _open_kubernetes,
    "process": _open_process,
    "slurm": _open_slurm,
}


def open_runtime(name: str, home: Home, host: str | None = None) -> Runtime:
    """The runtime of that name, here or on the far machine `host`."""
    return _OPEN[name](home, host)


def runtime_kind(name: str) -> RuntimeKind:
    """The runtime of that name."""
    return REGISTRY[name]()


__all__ = [
    "ENDING",
    "LOG",
    "REGISTRY",
    "Cache",
    "EnginePython",
    "Handle",
    "Place",
    "Prepared",
    "Queues",
    "Runtime",
    "ServerState",
    "Shows",
    "Status",
    "TakenImage",
    "UnansweredError",
    "each_of",
    "open_runtime",
    "run_dirs",
    "runtime_kind",
    "since_then",
    "start_of",
]
