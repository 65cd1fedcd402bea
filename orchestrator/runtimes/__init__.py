"""Ways to run a server: one folder and one line below for each; a runtime is imported when it is used."""

from collections.abc import Callable, Mapping
from typing import Final

from orchestrator.runtimes.base import (
    ENDING,
    LOG,
    Cache,
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
from orchestrator.runtimes.several import run_dirs, start_of


def _docker() -> RuntimeKind:
    from orchestrator.runtimes.docker.kind import DOCKER  # noqa: PLC0415

    return DOCKER


def _kubernetes() -> RuntimeKind:
    from orchestrator.runtimes.kubernetes.kind import KUBERNETES  # noqa: PLC0415

    return KUBERNETES


def _process() -> RuntimeKind:
    from orchestrator.runtimes.process.kind import PROCESS  # noqa: PLC0415

    return PROCESS


def _slurm() -> RuntimeKind:
    from orchestrator.runtimes.slurm.kind import SLURM  # noqa: PLC0415

    return SLURM


REGISTRY: Final[Mapping[str, Callable[[], RuntimeKind]]] = {
    "docker": _docker,
    "kubernetes": _kubernetes,
    "process": _process,
    "slurm": _slurm,
}


def runtime_kind(name: str) -> RuntimeKind:
    """The runtime of that name."""
    return REGISTRY[name]()


__all__ = [
    "ENDING",
    "LOG",
    "REGISTRY",
    "Cache",
    "Handle",
    "Place",
    "Prepared",
    "Queues",
    "Runtime",
    "RuntimeKind",
    "ServerState",
    "Shows",
    "Status",
    "TakenImage",
    "UnansweredError",
    "run_dirs",
    "runtime_kind",
    "since_then",
    "start_of",
]
