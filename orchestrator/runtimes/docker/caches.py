"""The volumes that keep compiled kernels between containers, one set an image and gfx."""

from dataclasses import dataclass

from docker.errors import APIError
from requests import codes

from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.docker.options import ARCH_LABEL, CACHE_LABEL


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One volume. `containers` is how many containers, running or not, use it; size in bytes."""

    volume: str
    image: str
    arch: str
    size: int
    containers: int


def caches(host: DockerHost) -> tuple[Cache, ...]:
    """The cache volumes of a Docker host, sorted by image and name."""
    with host.errors():
        volumes = host.client.df()["Volumes"] or []
    found = [
        Cache(
            volume=volume["Name"],
            image=volume["Labels"][CACHE_LABEL],
            arch=volume["Labels"][ARCH_LABEL],
            size=volume["UsageData"]["Size"],
            containers=volume["UsageData"]["RefCount"],
        )
        for volume in volumes
        if CACHE_LABEL in (volume["Labels"] or {})
    ]
    return tuple(sorted(found, key=lambda cache: (cache.image, cache.volume)))


def clear(host: DockerHost, cache: Cache) -> bool:
    """Remove a volume; False where a container uses it."""
    with host.errors():
        try:
            host.client.api.remove_volume(cache.volume)
        except APIError as error:
            if error.status_code == codes.conflict:
                return False
            if error.status_code != codes.not_found:
                raise
    return True
