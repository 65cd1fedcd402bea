"""Restore compiled kernels into Docker volumes and images, and download them from a real registry."""

import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loopback_registry import push

from orchestrator.core.errors import KernelsError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import RelativePath
from orchestrator.images.build import existing_image
from orchestrator.images.client import DockerCli
from orchestrator.images.receipt import RECEIPT_LABEL
from orchestrator.kernels.disk.archive import KernelFile, KernelUse, read_archive, write_archive
from orchestrator.planner.planning import load
from orchestrator.render.artifacts import Artifacts, Command
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.runtimes.docker.container import container_spec, spec_of
from orchestrator.runtimes.docker.kernels import kernel_store
from orchestrator.servers.start.kernels import (
    StartKernels,
    archive_of,
    image_with_kernels,
    kernel_plan,
    require_archive,
)

IMAGE = f"deploy-test/kernels-{os.getpid()}:1"
USE = KernelUse(arch="gfx950", driver="6.16.6", engine={"image": IMAGE}, plan="a" * 64)
KERNELS = {
    "aiter/module_norm.so": b"1",
    "aiter-build/gemm/lib.so": b"2",
    "flydsl/k.pkl": b"3",
    "miopen/3.5/k.ukdb": b"4",
    "miopen-db/gfx950.ufdb.txt": b"5",
    "sglang/triton/KEY/kernel.hsaco": b"6",
    "triton/KEY/kernel.hsaco": b"7",
    "tvm-ffi/sgl_kernel_jit_norm/norm.so": b"8",
}


def files(*names: str) -> list[KernelFile]:
    return [KernelFile(path=RelativePath(name), content=KERNELS[name], executable=False) for name in names]


@pytest.fixture
def prepared(docker_daemon: DockerCli) -> Iterator[PreparedRun]:
    """Return a prepared start, before its first container, from an image that has a module of aiter."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        entry = tarfile.TarInfo("sgl-workspace/aiter/aiter/jit/module_shipped.so")
        tar.addfile(entry, io.BytesIO(b""))
    docker_daemon.run("import", "-", IMAGE, stdin=content.getvalue().decode("latin1"))
    plan = load("mi355x-tp8").plan
    artifacts = Artifacts(
        plan=plan, command=Command(argv=(), env=(), runs_in_home=False), build=None, spec=container_spec(plan, IMAGE)
    )
    yield PreparedRun(artifacts=artifacts, records={})
    assert docker_daemon.run("ps", "--all", "--quiet", "--filter", f"ancestor={IMAGE}").stdout == ""
    docker_daemon.run("volume", "rm", "--force", *(cache.name for cache in spec_of(artifacts).caches))
    docker_daemon.run("image", "rm", "--force", IMAGE)


@pytest.mark.docker
def test_kernels_are_restored_into_new_volumes(prepared: PreparedRun, tmp_path: Path) -> None:
    store = kernel_store(prepared, HostRef(home=Home(tmp_path)))
    assert store is not None
    write_archive(tmp_path / "k.tar.gz", USE, [], files(*KERNELS))
    archive = read_archive(tmp_path / "k.tar.gz")
    assert store.lack(archive)
    assert store.add(archive) == len(KERNELS)
    assert not store.lack(archive)
    contents = {file.path: file.content for file in store.files()}
    assert contents == {**KERNELS, "aiter/module_shipped.so": b""}  # Docker fills new volumes from the image
    assert not list(archive.receipt.problems(KernelUse(**{**vars(USE), "engine": store.engine()})))


def test_kernel_archive_is_downloaded_from_registry_once(registry: str, tmp_path: Path) -> None:
    write_archive(tmp_path / "k.tar.gz", USE, [], files("triton/KEY/kernel.hsaco"))
    kind, layer = "application/vnd.oci.empty.v1+json", (tmp_path / "k.tar.gz").read_bytes()
    reference = f"oci://{push(registry, 'kernels', config=b'{}', kind=kind, layers=[layer])}"
    home = Home(tmp_path / "home")
    archive = archive_of(reference, HostRef(home=home))
    assert archive.digest == read_archive(tmp_path / "k.tar.gz").digest
    assert archive.path.stat().st_mode & 0o777 == 0o600
    unreachable = reference.replace(registry, "127.0.0.1:9")
    assert archive_of(unreachable, HostRef(home=home)).digest == archive.digest  # no second download
    write_archive(archive.path, USE, ["b" * 64], files("triton/KEY/kernel.hsaco"))  # changed on the disk
    with pytest.raises(KernelsError, match="cannot download the kernels"):
        archive_of(unreachable, HostRef(home=home))
    with pytest.raises(KernelsError, match="cannot download the kernels"):
        archive_of(f"oci://{registry}/kernels@sha256:{'0' * 64}", HostRef(home=home))


@pytest.mark.docker
def test_build_adds_compiled_kernels_to_image(
    prepared: PreparedRun, docker_daemon: DockerCli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`deploy build` with `engine.compiled_kernels` adds one layer and keeps the receipt of the image."""
    plan, base = prepared.artifacts.plan, f"{IMAGE.removesuffix(':1')}:receipt"
    label = f"LABEL {RECEIPT_LABEL}={json.dumps(json.dumps({'python': '3.12', 'sources': {}, 'patches': []}))}"
    docker_daemon.run("build", "--tag", base, "-", stdin=f"FROM {IMAGE}\n{label}\n")
    built = existing_image(docker_daemon, base)
    use = replace(USE, engine={"image": base}, plan=kernel_plan(plan))
    write_archive(tmp_path / "k.tar.gz", use, [], files(*KERNELS))
    reference = f"{tmp_path / 'k.tar.gz'}@{read_archive(tmp_path / 'k.tar.gz').digest}"
    plan = replace(plan, engine=replace(plan.engine, compiled_kernels=reference))
    extended = image_with_kernels(docker_daemon, built, plan, HostRef(home=Home(tmp_path)))
    assert extended.receipt == built.receipt
    started = replace(prepared, artifacts=replace(prepared.artifacts, plan=plan), image=extended.config)
    StartKernels.of(started, HostRef(home=Home(tmp_path))).unpack()  # the archive may name the base image
    assert image_with_kernels(docker_daemon, built, plan, HostRef(home=Home(tmp_path))).image_id == extended.image_id
    pod = replace(plan, runtime="kubernetes", prebuilt_image=extended.tag)
    for offline in (True, False):
        require_archive(pod, HostRef(home=Home(tmp_path)), offline=offline)
        with pytest.raises(KernelsError, match=f"`{base}` does not have those of `{reference}`") as caught:
            require_archive(replace(pod, prebuilt_image=base), HostRef(home=Home(tmp_path)), offline=offline)
        assert f"`deploy build mi355x-tp8 --set engine.compiled_kernels={reference} --tag" in (caught.value.hint or "")
    StartKernels.of(
        replace(started, artifacts=replace(started.artifacts, plan=pod)), HostRef(home=Home(tmp_path))
    ).unpack()
    assert "warning" not in capsys.readouterr().err
    unknown = replace(pod, prebuilt_image="127.0.0.1:9/image:1")
    require_archive(unknown, HostRef(home=Home(tmp_path)))
    assert f"cannot check that the image has the kernels of `{reference}`" in capsys.readouterr().err
    volumes = replace(prepared.artifacts, spec=replace(spec_of(prepared.artifacts), image=extended.tag))
    store = kernel_store(replace(prepared, artifacts=volumes), HostRef(home=Home(tmp_path)))
    assert store is not None
    contents = {file.path: file.content for file in store.files()}  # Docker fills new volumes from the image
    assert contents == {**KERNELS, "aiter/module_shipped.so": b""}
    write_archive(tmp_path / "k.tar.gz", replace(use, arch="gfx942"), [], files(*KERNELS))
    other = f"{tmp_path / 'k.tar.gz'}@{read_archive(tmp_path / 'k.tar.gz').digest}"
    plan = replace(plan, engine=replace(plan.engine, compiled_kernels=other))
    with pytest.raises(KernelsError, match="are not for this start"):
        image_with_kernels(docker_daemon, built, plan, HostRef(home=Home(tmp_path)))
    docker_daemon.run("image", "rm", "--force", extended.tag, base)
