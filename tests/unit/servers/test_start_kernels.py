"""Compiled kernels of a start: loading, rejecting and saving archives."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_samples import HOST_PATH, IMAGE, cluster_plan

from orchestrator.core.errors import HostError, KernelsError, ProfileError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.engine.kernel_caches import FOLDERS
from orchestrator.images.config import ImageConfig
from orchestrator.kernels.disk.archive import KernelStore, KernelUse, read_archive, write_archive
from orchestrator.kernels.disk.kernel_folders import KernelFolders
from orchestrator.plan.lock import plan_lines
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.render.artifacts import Artifacts, Command
from orchestrator.runtimes import caches as caches_of_runtimes
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import EnginePython, HostRef, PreparedRun
from orchestrator.servers.start.kernels import StartKernels, kernel_plan, require_archive
from orchestrator.servers.start.preview import preview
from orchestrator.servers.start.request import UpRequest

VERSIONS = {"sglang": "0.5.14", "torch": "2.9.1"}


@pytest.fixture
def plan() -> Plan:
    return load("cpu-tiny").plan


def caches(user: Path, engine: Mapping[str, str] = VERSIONS) -> KernelFolders:
    """Return the kernel folders of a user."""
    triton = next(folder for folder in FOLDERS if folder.name == "triton")
    return KernelFolders({"triton": (triton, user / ".triton/cache")}, lambda: engine)


def compiled(user: Path, name: str = "K") -> KernelFolders:
    """Return the kernel folders of a user whose server has compiled a kernel."""
    kernel = user / f".triton/cache/{name}/kernel.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"code")
    return caches(user)


def kernels(plan: Plan, home: Path, store: KernelStore | None) -> StartKernels:
    return StartKernels(plan, HostRef(home=Home(home)), store)


def saved(home: Path) -> list[Path]:
    return sorted((home / "compiled-kernels").glob("*.tar.gz"))


def with_archive(plan: Plan, reference: str) -> Plan:
    return replace(plan, engine=replace(plan.engine, compiled_kernels=reference))


def test_empty_host_loads_saved_kernels(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    kernels(plan, home, compiled(tmp_path / "first")).save()
    assert "saved 1 files of compiled kernels" in capsys.readouterr().err
    kernels(plan, home, caches(tmp_path / "second")).unpack()
    assert (tmp_path / "second/.triton/cache/K/kernel.cubin").read_bytes() == b"code"
    assert "1 files added" in capsys.readouterr().err
    kernels(plan, home, caches(tmp_path / "second")).unpack()
    assert capsys.readouterr().err == ""  # nothing was missing


def test_plans_share_one_kernel_archive(plan: Plan, tmp_path: Path) -> None:
    store = compiled(tmp_path / "user")
    kernels(plan, tmp_path, store).save()
    (archive,) = saved(tmp_path)
    first = archive.read_bytes()
    compiled(tmp_path / "user", "L")
    kernels(plan, tmp_path, store).save()
    assert archive.read_bytes() == first
    kernels(replace(plan, model=replace(plan.model, name="other")), tmp_path, store).save()
    assert saved(tmp_path) == [archive]
    assert len(read_archive(archive).receipt.plans) == 2
    assert len(read_archive(archive).sizes) == 2


def test_newly_compiled_kernels_are_added_to_archive(plan: Plan, tmp_path: Path) -> None:
    """sglang 0.5.16 on a second H100 host compiled 110 more files: Inductor finds its code, Triton does not."""
    kernels(plan, tmp_path, compiled(tmp_path / "first")).save()
    second = kernels(plan, tmp_path, caches(tmp_path / "second"))
    second.unpack()
    compiled(tmp_path / "second", "L")
    second.save()
    assert len(read_archive(saved(tmp_path)[0]).sizes) == 2


def test_kernels_of_other_versions_are_not_loaded(plan: Plan, tmp_path: Path) -> None:
    kernels(plan, tmp_path, compiled(tmp_path / "first")).save()
    kernels(plan, tmp_path, caches(tmp_path / "second", {"sglang": "0.5.16"})).unpack()
    assert not (tmp_path / "second").exists()


def test_no_archive_is_saved_without_kernels(plan: Plan, tmp_path: Path) -> None:
    def versions() -> Mapping[str, str]:
        raise AssertionError("the engine is queried without kernels to save")

    kernels(plan, tmp_path, replace(caches(tmp_path / "user"), engine=versions)).save()
    kernels(plan, tmp_path, replace(caches(tmp_path / "user"), engine=versions)).unpack()
    assert not (tmp_path / "compiled-kernels").exists()


def test_failure_to_save_or_load_kernels_warns(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def versions() -> Mapping[str, str]:
        raise HostError("no interpreter")

    kernels(plan, tmp_path, replace(compiled(tmp_path / "user"), engine=versions)).save()
    assert "cannot save the compiled kernels: no interpreter" in capsys.readouterr().err
    kernels(plan, tmp_path, caches(tmp_path / "user")).save()
    saved(tmp_path)[0].write_bytes(b"damaged")
    kernels(plan, tmp_path, caches(tmp_path / "second")).unpack()
    assert "cannot use the saved kernels" in capsys.readouterr().err


def test_named_archive_is_verified_by_digest(plan: Plan, tmp_path: Path) -> None:
    kernels(plan, tmp_path, compiled(tmp_path / "first")).save()
    (archive,) = saved(tmp_path)
    other = tmp_path / "elsewhere.tar.gz"
    archive.rename(other)
    reference = f"{other}@{read_archive(other).digest}"
    kernels(with_archive(plan, reference), tmp_path / "new", caches(tmp_path / "second")).unpack()
    assert (tmp_path / "second/.triton/cache/K/kernel.cubin").is_file()
    with pytest.raises(KernelsError, match="has the digest sha256:"):
        kernels(with_archive(plan, f"{other}@sha256:{'0' * 64}"), tmp_path, caches(tmp_path / "third")).unpack()
    assert not (tmp_path / "third").exists()


def test_mismatched_archive_is_rejected_with_each_field(plan: Plan, tmp_path: Path) -> None:
    kernels(plan, tmp_path, compiled(tmp_path / "first")).save()
    (archive,) = saved(tmp_path)
    other = with_archive(plan, f"{archive}@{read_archive(archive).digest}")
    other = replace(other, layout=replace(other.layout, tp=2), hardware=replace(other.hardware, arch="gfx950"))
    with pytest.raises(KernelsError, match="are not for this start") as caught:
        kernels(other, tmp_path, caches(tmp_path / "second", {"sglang": "0.5.14", "torch": "2.10.0"})).unpack()
    messages = "\n".join(problem.message for problem in caught.value.problems)
    assert "`arch`: compiled for `x86_64`, this start has `gfx950`" in messages
    assert "`engine.torch`: compiled for `2.9.1`, this start has `2.10.0`" in messages
    assert "`plan`: compiled for" in messages
    assert not (tmp_path / "second").exists()


def test_archive_is_checked_before_build(plan: Plan, tmp_path: Path) -> None:
    host_ref = HostRef(home=Home(tmp_path))
    kernels(plan, tmp_path, compiled(tmp_path / "first")).save()
    (archive,) = saved(tmp_path)
    reference = f"{archive}@{read_archive(archive).digest}"
    require_archive(with_archive(plan, reference), host_ref)
    other = replace(plan, hardware=replace(plan.hardware, arch="gfx950"))
    with pytest.raises(KernelsError, match="are not for this start"):
        require_archive(with_archive(other, reference), host_ref)
    archive.unlink()
    with pytest.raises(KernelsError, match="No such file") as missing:
        require_archive(with_archive(plan, reference), host_ref)
    assert "omit `engine.compiled_kernels`" in (missing.value.hint or "")
    request = UpRequest(
        profile="cpu-tiny", name=None, overrides=(f"engine.compiled_kernels={reference}",), host=None, image=None,
        replace=False, keep_failed=False, stage=True, allow_untuned=False, strict_kernels=False, timeout=None,
    )  # fmt: skip
    with pytest.raises(KernelsError, match="No such file"):
        preview(request, Home(tmp_path))
    slurm = replace(plan, runtime="slurm", slurm=SlurmSection())
    with pytest.raises(KernelsError, match="No such file"):
        require_archive(with_archive(slurm, reference), host_ref)
    contained = replace(slurm, slurm=SlurmSection(container="apptainer"))
    for changed in (contained, replace(plan, prebuilt_image="me/image")):
        require_archive(with_archive(changed, reference), host_ref)  # the image has the kernels


def test_slurm_ignores_driver_version_of_archive(plan: Plan, tmp_path: Path) -> None:
    kernels(plan, tmp_path, compiled(tmp_path / "first")).save()
    (archive,) = saved(tmp_path)
    use = KernelUse(arch=plan.hardware.arch, driver="580.159", engine=VERSIONS, plan=kernel_plan(plan))
    write_archive(archive, use, (), compiled(tmp_path / "node").files())
    slurm = with_archive(replace(plan, runtime="slurm"), f"{archive}@{read_archive(archive).digest}")
    kernels(slurm, tmp_path, caches(tmp_path / "second")).unpack()
    assert (tmp_path / "second/.triton/cache/K/kernel.cubin").is_file()
    with pytest.raises(KernelsError, match="are not for this start"):
        kernels(replace(slurm, runtime="process"), tmp_path, caches(tmp_path / "third")).unpack()


def test_slurm_image_kernels_are_not_checked(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels(with_archive(replace(plan, runtime="slurm"), f"/x@sha256:{'0' * 64}"), tmp_path, None).unpack()
    assert "the image of the job must have its kernels; this is not checked" in capsys.readouterr().err


def test_pod_image_without_kernels_is_rejected_for_new_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = {IMAGE: ImageConfig(reference=IMAGE, digest="", env={}, labels={})}
    monkeypatch.setattr("orchestrator.servers.start.kernels.local_config", images.get)
    host_ref = HostRef(home=Home(tmp_path))
    pod = with_archive(cluster_plan("cpu-tiny", HOST_PATH), f"oci://me/my kernels@sha256:{'0' * 64}")
    with pytest.raises(KernelsError, match="a pod takes compiled kernels from its image") as caught:
        require_archive(pod, host_ref, offline=True)
    assert "--set 'engine.compiled_kernels=oci://me/my kernels@sha256:" in (caught.value.hint or "")
    require_archive(pod, host_ref, of_run=True, offline=True)  # `restart` cannot change the plan of a run
    assert "warning: a pod takes compiled kernels from its image" in capsys.readouterr().err
    require_archive(replace(pod, prebuilt_image="me/unknown:1"), host_ref, offline=True)
    assert "note: `me/unknown:1` is not known here" in capsys.readouterr().err
    on_nodes = with_archive(cluster_plan("cpu-tiny", HOST_PATH, "kubernetes.image_pull_policy=Never"), "k@sha256:0")
    require_archive(on_nodes, host_ref)
    assert f"note: `{IMAGE}` is on the nodes only" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("runtime", "has_folders"), [("process", True), ("slurm", True), ("kubernetes", False)])
def test_kernel_directories_follow_environment_variables(
    plan: Plan, tmp_path: Path, runtime: str, has_folders: bool
) -> None:
    engine = EnginePython(
        identity=None,
        run=lambda _, names: CompletedProgram(argv=(), code=0, stdout=json.dumps({"asked": names}), stderr=""),
    )
    env = (("TRITON_CACHE_DIR", str(tmp_path / "moved")),)
    artifacts = Artifacts(plan=plan, command=Command(argv=(), env=env, runs_in_home=True), build=None)
    store = runtime_class(runtime).kernel_store(
        PreparedRun(artifacts=artifacts, records={}, engine=engine), HostRef(home=Home(tmp_path))
    )
    assert (store is not None) is has_folders
    if isinstance(store, KernelFolders):
        assert store.folders["triton"][1] == tmp_path / "moved"
        assert '"torch"' in store.engine()["asked"]
        kernel = tmp_path / "moved/K/kernel.cubin"
        kernel.parent.mkdir(parents=True)
        kernel.write_bytes(b"code")
        assert "triton/K/kernel.cubin" in [file.path for file in store.files()]


def test_prune_caches_removes_kernel_archives(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next start would unpack the removed kernels again."""
    monkeypatch.setattr(caches_of_runtimes, "REGISTRY", ())
    kernels(plan, tmp_path, compiled(tmp_path / "user")).save()
    (tmp_path / "compiled-kernels/damaged.tar.gz").write_bytes(b"")
    listed = caches_of_runtimes.prune_caches(Home(tmp_path), None, dry_run=True)
    assert [cache.requirements for cache in listed] == [{"gfx": "x86_64", "sglang": "0.5.14"}, {"receipt": "damaged"}]
    assert len(saved(tmp_path)) == 2
    assert caches_of_runtimes.prune_caches(Home(tmp_path), "ssh://node", dry_run=False) == ()
    caches_of_runtimes.prune_caches(Home(tmp_path), None, dry_run=False)
    assert saved(tmp_path) == []


def test_lockfile_pins_kernel_archive(plan: Plan) -> None:
    reference = f"oci://ghcr.io/me/kernels@sha256:{'1' * 64}"
    assert plan_lines(with_archive(plan, reference))["engine.compiled_kernels"] == reference
    assert with_archive(plan, reference).digest != plan.digest
    assert kernel_plan(with_archive(plan, reference)) == kernel_plan(plan)
    assert kernel_plan(replace(plan, layout=replace(plan.layout, tp=2))) != kernel_plan(plan)
    with pytest.raises(ProfileError, match=r"engine\.compiled_kernels|is not valid"):
        load("cpu-tiny", overrides=["engine.compiled_kernels=/without/digest.tar.gz"])
