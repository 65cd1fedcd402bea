"""The compiled kernels of a start: unpacked before it, saved after its smoke test.

The profile may name their archive; otherwise it is the archive in the home directory for the GPU, driver and build of
the engine.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import BuildError, DeployError, KernelsError
from orchestrator.core.files import atomic_write, private_dir
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.subprocesses import quote
from orchestrator.engine.kernel_caches import ROOT_HOME, kernel_folders
from orchestrator.hosts.gpus import read_gpus
from orchestrator.images.base import known_digests
from orchestrator.images.build import BuiltImage, add_layer
from orchestrator.images.client import DockerCli
from orchestrator.images.config import local_config
from orchestrator.images.registry import Registry, read_config
from orchestrator.kernels.disk.archive import (
    SUFFIX,
    KernelArchive,
    KernelStore,
    KernelUse,
    read_archive,
    write_archive,
    write_tar,
)
from orchestrator.plan.plan import Plan
from orchestrator.planner.prebuilt import image_of
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.servers.start.host import runner_for

OCI: Final = "oci://"
_LABEL: Final = "deploy.kernels"  # digest of the archive whose kernels an image contains
_WITHOUT: Final = "omit `engine.compiled_kernels`: the server then compiles its own"
_DOWNLOAD: Final = 600.0  # seconds


def kernel_plan(plan: Plan) -> str:
    """Return the digest of the model, layout and flags, which determine the compiled kernels of a plan."""
    model = plan.model.checkpoint
    parts = [plan.model.name, asdict(model), asdict(plan.layout), [(flag.name, flag.values) for flag in plan.flags]]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


@dataclass
class StartKernels:
    """The compiled kernels of one start; `store` is None if its runtime cannot reach them."""

    plan: Plan
    host_ref: HostRef
    store: KernelStore | None
    in_image: str = ""  # digest of the archive whose kernels the image contains
    added: int = 0  # files that this start has unpacked

    @classmethod
    def of(cls, prepared: PreparedRun, host_ref: HostRef) -> "StartKernels":
        """Return the kernels of a prepared start."""
        plan = prepared.artifacts.plan
        in_image = prepared.image.labels.get(_LABEL, "") if prepared.image else ""
        return cls(plan, host_ref, runtime_class(plan.runtime).kernel_store(prepared, host_ref), in_image)

    def unpack(self) -> None:
        """Unpack the missing kernels. Raises KernelsError if the archive that the profile names does not match.

        Only warn of a problem with an archive in the home directory: the server then compiles its kernels.
        """
        if self.plan.engine.compiled_kernels is not None:
            self._unpack_named(self.plan.engine.compiled_kernels)
        elif self.store is not None and any(self.host_ref.home.compiled_kernels.glob(f"*{SUFFIX}")):
            with _warning("cannot use the saved kernels"):
                if self._path.is_file():
                    self._add_archive(read_archive(self._path), self.store)

    def save(self) -> None:
        """Save the kernels that a verified server has compiled; only warn of a failure.

        Save them once for each plan, and again after a start that unpacked some, because it may have compiled more.
        """
        if self.store is None:
            return
        with _warning("cannot save the compiled kernels"):
            files = self.store.files()
            if (first := next(files, None)) is None:
                return
            plans = read_archive(self._path).receipt.plans if self._path.is_file() else ()
            if self._use.plan in plans and not self.added:
                return
            self.host_ref.home.root.mkdir(parents=True, exist_ok=True)
            private_dir(self._path.parent)
            count = write_archive(self._path, self._use, plans, chain([first], files))
            saved = read_archive(self._path)
            note(f"saved {count} files of compiled kernels, {saved.size:,} bytes: {self._path}@{saved.digest}")

    @property
    def _knows_node(self) -> bool:
        """Whether the node is known before the start; a cluster chooses its node later."""
        return runtime_class(self.plan.runtime).is_local

    @cached_property
    def _use(self) -> KernelUse:
        plan, vendor = self.plan, self.plan.hardware.vendor
        inventory = read_gpus(vendor, runner_for(self.host_ref)) if vendor != "cpu" and self._knows_node else None
        driver = inventory.driver if inventory is not None else None
        engine = self.store.engine() if self.store is not None else {}
        return KernelUse(arch=plan.hardware.arch, driver=driver or "none", engine=engine, plan=kernel_plan(plan))

    @property
    def _path(self) -> Path:
        return self.host_ref.home.compiled_kernels / FileName(f"{self._use.key}{SUFFIX}")

    def _unpack_named(self, reference: str) -> None:
        if reference.rpartition("@")[2] == self.in_image:
            return
        if self.store is None:
            if not runtime_class(self.plan.runtime).cluster_managed:  # for a pod, `require_archive` has read the image
                note(f"`{reference}` is not unpacked: the image of the job must have its kernels; this is not checked")
            return
        archive = archive_of(reference, self.host_ref)
        driver = self._use.driver if self._knows_node else archive.receipt.driver
        _require_match(archive, replace(self._use, driver=driver))
        try:
            self._add_archive(archive, self.store)
        except OSError as error:
            raise KernelsError(f"cannot unpack `{archive.path}`: {error.strerror}: `{error.filename}`") from error

    def _add_archive(self, archive: KernelArchive, store: KernelStore) -> None:
        if store.lack(archive):
            self.added = store.add(archive)
            note(f"compiled kernels: {self.added} files added from {archive.path}")


def unpack_kernels(prepared: PreparedRun, host_ref: HostRef) -> StartKernels:
    """Unpack the missing kernels on each host of a start, and return the kernels of the first host."""
    kernels = [StartKernels.of(prepared, node) for node in host_ref.nodes]
    for kernel in kernels:
        kernel.unpack()
    return kernels[0]


def image_with_kernels(docker: DockerCli, built: BuiltImage, plan: Plan, host_ref: HostRef) -> BuiltImage:
    """Return the image with the kernels that the plan names. Raises KernelsError if they are for another image.

    A build cannot compare drivers, because it does not know the driver of the server's host.
    """
    reference = plan.engine.compiled_kernels or ""
    archive, digest = archive_of(reference, host_ref), reference.rpartition("@")[2]
    names, receipt = {built.tag, *known_digests(docker, built.tag)}, archive.receipt
    image = receipt.engine["image"] if receipt.engine.get("image") in names else built.tag
    use = KernelUse(arch=plan.hardware.arch, driver=receipt.driver, engine={"image": image}, plan=kernel_plan(plan))
    _require_match(archive, use)
    env = {**(built.config.env if built.config else {}), **{item.name: item.value for item in plan.env}}
    folders = kernel_folders(env, home=ROOT_HOME, user="root", aiter_dir=plan.engine.aiter_dir)
    content = BytesIO()
    count = write_tar(content, archive, {folder.name: path for folder, path in folders}, private=False)
    note(f"compiled kernels: {count} files added from {archive.path}")
    return add_layer(
        docker,
        built,
        content.getvalue(),
        tag=f"{built.tag}-{archive.digest.partition(':')[2][:12]}",
        label=f"{_LABEL}={digest}",
    )


def _require_match(archive: KernelArchive, use: KernelUse) -> None:
    if problems := list(archive.receipt.problems(use)):
        raise KernelsError(f"the kernels of `{archive.path}` are not for this start", problems=problems, hint=_WITHOUT)


def require_archive(plan: Plan, host_ref: HostRef, *, of_run: bool = False, offline: bool = False) -> None:
    """Raise KernelsError, before any build or download, if the named archive is missing, damaged or for another GPU.

    An archive in a registry is not checked, nor an archive for a job in a container, whose image may contain the
    kernels. The image of a pod must contain them; with the plan of an earlier run (`of_run`), only warn if they are
    missing. With `offline`, check only an image that is already known.
    """
    reference = plan.engine.compiled_kernels
    if reference is not None and runtime_class(plan.runtime).cluster_managed:
        try:
            _require_in_image(plan, reference, offline=offline)
        except KernelsError as error:
            if not of_run:
                raise
            warn(f"{error.message}; the server compiles its own")
        return
    in_container = plan.slurm and plan.slurm.container != "none"
    if reference is None or reference.startswith(OCI) or plan.prebuilt_image or in_container:
        return
    archive = archive_of(reference, host_ref)
    receipt = archive.receipt
    use = KernelUse(
        arch=plan.hardware.arch, driver=receipt.driver, engine=receipt.engine, plan=next(iter(receipt.plans), "")
    )
    _require_match(archive, use)


def _require_in_image(plan: Plan, reference: str, *, offline: bool) -> None:
    """Raise KernelsError if the pods' image lacks the kernels that the plan names; warn if it is unreadable."""
    image = image_of(plan) or ""
    if plan.kubernetes is not None and plan.kubernetes.image_pull_policy == "Never":
        note(f"`{image}` is on the nodes only; its kernels are not compared with `{reference}`")
        return
    try:
        config = local_config(image) if offline else read_config(image)
    except BuildError as error:
        warn(f"cannot check that the image has the kernels of `{reference}`: {error.message}", hint=error.hint)
        return
    if config is None:
        note(f"`{image}` is not known here; `deploy up` checks that it has the kernels of `{reference}`")
    elif config.labels.get(_LABEL) != reference.rpartition("@")[2]:
        message = f"a pod takes compiled kernels from its image; `{image}` does not have those of `{reference}`"
        setting = f"engine.compiled_kernels={reference}"
        build = quote(["deploy", "build", plan.profile, "--set", setting, "--tag", "NAME", "--push"])
        raise KernelsError(message, hint=f"`{build}` adds them and prints the image for `--image`; or {_WITHOUT}")


def archive_of(reference: str, host_ref: HostRef) -> KernelArchive:
    """Return the archive of a reference with a digest; download it if it is in a registry. Raises KernelsError."""
    name, _, digest = reference.rpartition("@")
    if name.startswith(OCI):
        return _downloaded(reference.removeprefix(OCI), host_ref.home)
    try:
        archive = read_archive(Path(name))
    except KernelsError as error:
        error.hint = _WITHOUT
        raise
    if archive.digest != digest:
        raise KernelsError(f"`{name}` has the digest {archive.digest}, not {digest}", hint=_WITHOUT)
    return archive


def _downloaded(reference: str, home: Home) -> KernelArchive:
    """Download an archive from a registry; the digest in `reference` pins the manifest, which pins the archive.

    Raises KernelsError.
    """
    folder, manifest = home.compiled_kernels / "oci", reference.rpartition(":")[2]
    try:
        for file in folder.glob(f"{manifest}-*{SUFFIX}"):
            archive = read_archive(file)
            if file.name == f"{manifest}-{archive.digest.removeprefix('sha256:')}{SUFFIX}":
                return archive
        content = Registry(timeout=_DOWNLOAD).artifact(reference)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / FileName(f"{manifest}-{hashlib.sha256(content).hexdigest()}{SUFFIX}")
        return read_archive(atomic_write(path, content, mode=0o600))
    except (BuildError, OSError) as error:
        hint = "correct the reference, or omit it: the server then compiles its kernels"
        raise KernelsError(f"cannot download the kernels of `{reference}`", details=str(error), hint=hint) from error


@contextmanager
def _warning(message: str) -> Iterator[None]:
    """Turn an error in the block into a warning: missing kernels only cost time."""
    try:
        yield
    except (DeployError, OSError) as error:
        warn(f"{message}: {error.message if isinstance(error, DeployError) else error}")
