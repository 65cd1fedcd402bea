"""Ways to run a server: one dict, one line a runtime. A runtime's module is imported when it is used."""

from collections.abc import Callable, Mapping
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Runtime


def _docker(home: Home, host: str | None) -> Runtime:
    from orchestrator.runtimes.docker.runtime import DockerRuntime  # noqa: PLC0415 - the docker SDK costs 0.2 s to import

    return DockerRuntime(home, host)


def _process(home: Home, host: str | None) -> Runtime:  # noqa: ARG001 - a process always runs on this machine
    from orchestrator.runtimes.process.runtime import ProcessRuntime  # noqa: PLC0415

    return ProcessRuntime(home)


REGISTRY: Final[Mapping[str, Callable[[Home, str | None], Runtime]]] = {
    "docker": _docker,
    "process": _process,
}
