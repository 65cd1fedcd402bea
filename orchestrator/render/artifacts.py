"""Artifacts: text and bytes rendered from a plan. Equal plans give equal artifacts, on any machine."""

import hashlib
from dataclasses import dataclass

from orchestrator.plan import ContainerNeeds, Plan


@dataclass(frozen=True, kw_only=True)
class Command:
    """The server's argv and its own variables, sorted by name. Holds no secret."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class ContextFile:
    """One file of a build context; `path` is relative with forward slashes."""

    path: str
    content: bytes
    executable: bool


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """A Dockerfile with everything it copies, sorted by path."""

    files: tuple[ContextFile, ...]

    @property
    def digest(self) -> str:
        """sha256 over names, modes and contents, hex; the image tag is its beginning."""
        total = hashlib.sha256()
        for file in self.files:
            total.update(f"{file.path}\0{int(file.executable)}\0{len(file.content)}\0".encode())
            total.update(file.content)
        return total.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A bind mount. `source` is absolute, or relative to the tool's home directory of the machine it runs on."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class CacheVolume:
    """A named volume that outlives the container, filled at its first use from what the image holds at `target`."""

    name: str
    target: str


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What `docker run` is given, apart from name, command and environment."""

    image: str
    needs: ContainerNeeds
    mounts: tuple[Mount, ...]
    caches: tuple[CacheVolume, ...]
    publish: tuple[str, int, int]  # host address, host port, container port
    restarts: int  # how often a server that died is started again
    stop_grace: int  # seconds


@dataclass(frozen=True, kw_only=True)
class Artifacts:
    """Everything rendered from one plan.

    For the process runtime `command` runs with the tool's home directory as its working directory, so that its paths
    are relative and the same on every machine; for a container its paths are those inside.
    """

    plan: Plan
    command: Command
    build: BuildContext | None
    container: ContainerSpec | None
