"""What starts have made and later ones take: volumes of compiled kernels, patched copies of sglang."""

from dataclasses import asdict, dataclass

from orchestrator.core.console import note
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes.docker.caches import Cache, caches
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.process.copies import Copy, copies


@dataclass(frozen=True, kw_only=True)
class Cached:
    """What there is, of both kinds."""

    volumes: tuple[Cache, ...]
    copies: tuple[Copy, ...]

    def to_dict(self) -> dict[str, object]:
        """As plain JSON-able data."""
        return {
            "volumes": [asdict(volume) for volume in self.volumes],
            "copies": [{**asdict(copy), "folder": str(copy.folder)} for copy in self.copies],
        }


def cached(home: Home, host: str | None) -> Cached:
    """The volumes of a Docker host; and, where no host is named, the copies in this home.

    Raises HostError where the daemon does not answer, unless there are copies: a pod has no daemon.
    """
    made = copies(home) if host is None else ()
    try:
        volumes = caches(DockerHost(home, host))
    except HostError as error:
        if not made:
            raise
        note(f"docker could not be asked: {error.message}")
        volumes = ()
    return Cached(volumes=volumes, copies=made)
