"""The volumes that keep compiled kernels between containers: one set per image and gfx."""

from functools import partial
from http import HTTPStatus

from orchestrator.core.paths import Home
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.runtimes.base import Cache
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.docker.options import ARCH_LABEL, CACHE_LABEL
from orchestrator.runtimes.docker.sdk import docker


def caches(home: Home, url: str | None) -> tuple[Cache, ...]:
    """Return the cache volumes of a Docker host, sorted by image and name."""
    host = DockerHost(home, url)
    with host.errors():
        volumes = host.client.df()["Volumes"] or []
        found = [
            Cache(
                kind="compiled kernels",
                location=volume["Name"],
                requirements={"image": volume["Labels"][CACHE_LABEL], "gfx": volume["Labels"][ARCH_LABEL]},
                size=volume["UsageData"]["Size"],
                used_by=_containers(host, volume["Name"]),
                remove=partial(_remove, host, volume["Name"]),
            )
            for volume in volumes
            if CACHE_LABEL in (volume["Labels"] or {})
        ]
    return tuple(sorted(found, key=lambda cache: (cache.requirements["image"], cache.location)))


def _containers(host: DockerHost, volume: str) -> tuple[str, ...]:
    """Return the containers, running or not, that use a volume."""
    found = host.client.containers.list(all=True, filters={"volume": volume}, ignore_removed=True)
    return tuple(sorted(str(container.name) for container in found))


def _remove(host: DockerHost, volume: str) -> bool:
    ignore_sigpipe()
    with host.errors():
        try:
            host.client.api.remove_volume(volume)
        except docker.errors.APIError as error:
            if error.status_code == HTTPStatus.CONFLICT:
                return False
            if error.status_code != HTTPStatus.NOT_FOUND:
                raise
    return True
