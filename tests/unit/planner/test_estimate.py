"""The steps that `up` announces before it runs them."""

import hashlib
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint
from kernel_samples import FUSED_TP8, every_bucket

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.paths import Home
from orchestrator.images.config import ImageConfig
from orchestrator.kernels.disk.store import Store
from orchestrator.planner import estimate
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import HostRef

ARTIFACTS = render_artifacts(load("mi355x-tp8").plan)


def steps_by_name(host_ref: HostRef) -> dict[str, tuple[str, float]]:
    return {step.name: (step.detail, step.seconds) for step in estimate.steps_of(ARTIFACTS, host_ref)}


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the prefixes of the local images; a test adds to them."""
    local: set[str] = set()

    def config(reference: str) -> ImageConfig | None:
        is_local = any(reference.startswith(name) for name in local)
        return ImageConfig(reference=reference, digest="", env={}, labels={}) if is_local else None

    monkeypatch.setattr(estimate, "local_config", config)
    return local


def test_empty_host_needs_every_step(tmp_path: Path) -> None:
    steps = steps_by_name(HostRef(home=Home(tmp_path)))
    assert list(steps) == ["image", "checkpoint", "table", "start"]  # the image first: its engine checks the arguments
    assert steps["checkpoint"][0] == "438.0 GB of amd/GLM-5.2-MXFP4 to download, at 400 MB/s"
    assert steps["checkpoint"][1] == pytest.approx(438_033_728_823 / 400e6)
    assert steps["image"][0].endswith("pulled and patched: up to 96 GiB of disk")
    assert all(seconds > 0 for _, seconds in steps.values())
    assert steps["start"][0] == "438.0 GB loaded, kernels compiled, graphs captured, smoke test"


def test_generated_checkpoint_is_not_generated_again(tmp_path: Path) -> None:
    tiny, host_ref = render_artifacts(load("cpu-tiny").plan), HostRef(home=Home(tmp_path))
    [start] = [step.detail for step in estimate.steps_of(tiny, host_ref) if step.name == "start"]
    assert start.endswith(" MB loaded, smoke test")
    checkpoint = Home(tmp_path).models / "tiny"
    generator = Catalog.shipped().path(EntryKind.IMAGE_FILE, tiny.plan.model.checkpoint.path)
    environment, before = estimate.steps_of(tiny, host_ref)[:2]
    checkpoint.mkdir(parents=True)
    (checkpoint / ".generator").write_text(hashlib.sha256(generator.read_bytes()).hexdigest())
    after = estimate.steps_of(tiny, host_ref)[1]
    assert environment.detail == "sglang-cpu-0.5.14.txt: 1.7 GB of packages to install"
    assert (before.detail, before.seconds) == (f"{checkpoint}: to be generated", 5)
    assert (after.detail, after.seconds) == (str(checkpoint), 0)


def test_existing_table_and_image_need_no_time(tmp_path: Path, images: set[str]) -> None:
    home = Home(tmp_path)
    Store.of(home, ARTIFACTS.plan).write(ARTIFACTS.plan, every_bucket(FUSED_TP8))
    images.add("lmsysorg/sglang-rocm:")
    base = steps_by_name(HostRef(home=home))
    images.add("deploy/mi355x-tp8:")
    built = steps_by_name(HostRef(home=home))
    assert (base["table"][1], base["image"]) == (0, ("lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260728 patched", 30))
    assert built["image"][1] == 0


def test_interrupted_download_counts_only_remaining_bytes(tmp_path: Path) -> None:
    home = Home(tmp_path)
    directory = write_checkpoint(home.models / "glm-5.2-mxfp4", mtp_layer=78)
    partial_file = directory / ".parts/abc/model-00009.safetensors.part"
    partial_file.parent.mkdir(parents=True)
    partial_file.touch()
    with partial_file.open("wb") as file:
        file.truncate(338 * 10**9)  # sparse
    assert steps_by_name(HostRef(home=home))["checkpoint"][0].startswith("100.0 GB of amd/GLM-5.2-MXFP4 to download")


def test_steps_on_remote_host_ignore_local_images(tmp_path: Path, images: set[str]) -> None:
    images |= {"deploy/", "lmsysorg/"}  # images of this machine
    steps = steps_by_name(HostRef(home=Home(tmp_path), remote="ssh://node"))
    assert "438.0 GB of amd/GLM-5.2-MXFP4 to download on ssh://node" in steps["checkpoint"][0]
    assert "pulled and patched on ssh://node" in steps["image"][0]
    assert min(steps["checkpoint"][1], steps["image"][1]) > 900
    both = steps_by_name(HostRef(home=Home(tmp_path), remote="ssh://node", rank_hosts=("ssh://other",)))
    assert all(" on ssh://node and ssh://other" in both[step][0] for step in ("checkpoint", "image"))
