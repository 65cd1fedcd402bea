"""What starts have made and later ones take, whichever runtime made it."""

from orchestrator.core.console import note
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes import REGISTRY, open_runtime, runtime_class
from orchestrator.runtimes.base import Cache


def caches(home: Home, host: str | None) -> tuple[Cache, ...]:
    """The caches of this home and of its Docker host; with `host`, those of that machine alone.

    Raises HostError where a runtime does not answer, unless another one has caches: a pod has no daemon.
    """
    found: list[Cache] = []
    silent: dict[str, HostError] = {}
    for name in REGISTRY:
        if host is None or runtime_class(name).over_ssh:
            try:
                found += open_runtime(name, home, host).caches()
            except HostError as error:
                silent[name] = error
    for name, why in silent.items():
        if not found:
            raise why
        note(f"{name} could not be asked: {why.message}")
    return tuple(found)
