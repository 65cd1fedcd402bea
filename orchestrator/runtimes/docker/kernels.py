"""The compiled kernels in a container's cache volumes, accessed through a container that is never started."""

import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.core.errors import HostError
from orchestrator.core.safe_paths import RelativePath, UnsafeValueError
from orchestrator.engine.kernel_caches import ROOT_HOME, KernelFolder, is_kernel_file, kernel_folders
from orchestrator.kernels.disk.archive import KernelArchive, KernelFile, KernelStore, write_tar
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.runtimes.docker.container import ContainerSpec, spec_of
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.docker.options import cache_mounts
from orchestrator.runtimes.docker.sdk import docker

if TYPE_CHECKING:
    from docker.models.containers import Container


def kernel_store(prepared: PreparedRun, host_ref: HostRef) -> KernelStore | None:
    """Return the volumes of a server; None if it has none, as on a CPU."""
    first = prepared.artifacts.first_server
    env = {**(prepared.image.env if prepared.image else {}), **dict(first.command.env)}
    return KernelVolumes(first, env, host_ref) if spec_of(first).caches else None


@dataclass(frozen=True)
class KernelVolumes:
    """The cache volumes of a server. See `KernelStore`."""

    artifacts: Artifacts
    env: Mapping[str, str]
    host_ref: HostRef

    @property
    def spec(self) -> ContainerSpec:
        """The container of the server."""
        return spec_of(self.artifacts)

    def engine(self) -> Mapping[str, str]:
        """Return the name of the image, which has a digest: a volume belongs to one image."""
        return {"image": self.spec.image}

    def files(self) -> Iterator[KernelFile]:
        """Yield the kernels in the volumes."""
        with self._container() as container:
            for folder, path in self._folders().values():
                try:
                    blocks, _ = container.get_archive(path)
                except docker.errors.NotFound:
                    continue
                with tempfile.TemporaryFile() as packed:
                    packed.writelines(blocks)
                    packed.seek(0)
                    with tarfile.open(fileobj=packed, mode="r|") as tar:
                        yield from _kernels(tar, folder)

    def lack(self, _archive: KernelArchive) -> bool:
        """Return whether a volume is missing. Docker fills a new one from the image; later starts keep theirs."""
        with closing(DockerHost(self.host_ref.home, self.host_ref.remote)) as host, host.errors():
            present = {volume.name for volume in host.client.volumes.list(filters={"name": "deploy-cache-"})}
        return not {cache.name for cache in self.spec.caches} <= present

    def add(self, archive: KernelArchive) -> int:
        """Unpack an archive into the volumes, as Docker's `cp` does."""
        with tempfile.TemporaryFile() as packed:
            count = write_tar(packed, archive, {name: path for name, (_, path) in self._folders().items()})
            packed.seek(0)
            with self._container() as container:
                container.put_archive("/", packed)
        return count

    def _folders(self) -> dict[str, tuple[KernelFolder, str]]:
        """Return the folders that are in a volume."""
        folders = kernel_folders(self.env, home=ROOT_HOME, user="root", aiter_dir=self.artifacts.plan.engine.aiter_dir)
        targets = [cache.target for cache in self.spec.caches]
        return {
            folder.name: (folder, path)
            for folder, path in folders
            if any(PurePosixPath(path).is_relative_to(target) for target in targets)
        }

    @contextmanager
    def _container(self) -> Iterator["Container"]:
        """Create a container with the volumes, and remove it. Raises HostError."""
        try:
            with closing(DockerHost(self.host_ref.home, self.host_ref.remote)) as host, host.errors():
                mounts = cache_mounts(self.spec, self.artifacts)
                container = host.client.containers.create(self.spec.image, ["true"], mounts=mounts)
                try:
                    yield container
                finally:
                    container.remove(force=True)
        except (docker.errors.APIError, docker.errors.ImageNotFound) as error:
            message = f"cannot read the cache volumes of `{self.spec.image}`"
            hint = f"`docker image inspect {self.spec.image}` shows whether the image exists"
            raise HostError(message, details=str(error), hint=hint) from error


def _kernels(tar: tarfile.TarFile, folder: KernelFolder) -> Iterator[KernelFile]:
    """Yield the kernels of a folder that Docker has packed, whose paths begin with the folder's own name."""
    for entry in tar:
        below = entry.name.partition("/")[2]
        content = tar.extractfile(entry) if entry.isreg() else None
        if content is None or not is_kernel_file(folder, below):
            continue
        try:
            path = RelativePath(f"{folder.name}/{below}")
        except UnsafeValueError:
            continue
        yield KernelFile(path=path, content=content.read(), executable=bool(entry.mode & 0o100))
