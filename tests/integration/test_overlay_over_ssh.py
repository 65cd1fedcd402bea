"""The patched config of a far checkpoint, over a real ssh connection on loopback; the far machine is this one."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint
from loopback_ssh import needs_sshd, ssh_server
from quark_samples import Tiny, write_tensors, write_tiny

from orchestrator.checkpoints import remote_download
from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.checkpoints.receipt import receipt_path
from orchestrator.checkpoints.verify import VerifiedCheckpoint
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.core.paths import Home
from orchestrator.plan.plan import Model
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.runtimes.docker.container import container_spec
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.servers.start import prepare
from orchestrator.servers.start.decisions import decide_beforehand
from orchestrator.servers.start.request import UpRequest

pytestmark = needs_sshd

PLAN = load("mi355x-tp8-july").plan
PREPARED = PreparedRun(artifacts=render_artifacts(PLAN), records={})
OVERLAY = str(overlay_path(PLAN))
LAYER = "model.layers.78"
TENSORS = {
    "a.safetensors": {"model.layers.0.mlp.gate.weight": "U8"},
    "b é.safetensors": {f"{LAYER}.mlp.experts.0.up_proj.weight": "BF16"},
}
CONFIG = {
    "num_hidden_layers": 78,
    "quantization_config": {"quant_method": "quark", "exclude": [f"{LAYER}.eh_proj"]},
}


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostRef]:
    """A far machine with a home of its own, seen from a home that holds nothing."""
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "models").mkdir(parents=True)
    here.mkdir()
    ssh = tmp_path / "ssh"
    ssh.mkdir()
    with ssh_server(ssh, deploy_home=there, monkeypatch=monkeypatch) as url:
        yield HostRef(home=Home(here), remote=url)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint on the far machine whose MTP layer has its experts in bf16."""
    unverified(monkeypatch)
    folder = tmp_path / "there/models" / PLAN.model.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, dtypes in TENSORS.items():
        write_tensors(folder / name, {tensor: (dtype, (1,)) for tensor, dtype in dtypes.items()})
    files = {tensor: name for name, tensors in TENSORS.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a checkpoint as it is: these have a few tensors only."""

    def verify(mirror: Path, _model: Model, **_: object) -> VerifiedCheckpoint:
        receipt_path(mirror).write_text("{}")
        return VerifiedCheckpoint(
            directory=mirror, revision=None, files=0, size=0, shards=0, tensors=0, from_receipt=False, mismatches=()
        )

    monkeypatch.setattr(remote_download, "verify_checkpoint", verify)


def test_patched_config_is_copied_to_remote_host(far: HostRef, checkpoint: Path, tmp_path: Path) -> None:
    """What is written there is what the same command would have written there itself."""
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}

    prepare.ensure_checkpoint(PLAN, far, stage=False)
    prepare.prepare_overlay(PREPARED, far)
    with closing(DockerHost(far.home, far.remote)) as host:
        host.copy_files(container_spec(PLAN, "image"))

    carried = tmp_path / "there" / OVERLAY
    patched = json.loads(carried.read_text())["quantization_config"]["exclude"]
    assert patched == [f"{LAYER}.eh_proj", "model.eh_proj", "model.decoder.mlp.experts"]
    text = carried.read_text()
    prepare.prepare_overlay(PREPARED, HostRef(home=Home(tmp_path / "there")))
    assert carried.read_text() == text
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
    made = far.home.for_remote(far.remote) / OVERLAY
    assert [path.name for path in made.parent.iterdir()] == ["config.json"]  # no link to nowhere


def test_overlays_of_other_hosts_are_not_used(far: HostRef, checkpoint: Path, tmp_path: Path) -> None:
    """Two machines, and this one, may hold other checkpoints under one name; two commands may prepare them at once."""
    prepare.ensure_checkpoint(PLAN, far, stage=False)
    prepare.prepare_overlay(PREPARED, far)
    for other in (HostRef(home=far.home, remote=f"{far.remote}/other.sock"), HostRef(home=far.home)):
        elsewhere = far.home.for_remote(other.remote) / OVERLAY
        elsewhere.parent.mkdir(parents=True)
        elsewhere.write_text("{}")

    with closing(DockerHost(far.home, far.remote)) as host:
        host.copy_files(container_spec(PLAN, "image"))

    theirs, ours = (json.loads(path.read_text()) for path in (checkpoint / "config.json", tmp_path / "there" / OVERLAY))
    assert ours.keys() == theirs.keys()


def test_missing_remote_checkpoint_is_reported(far: HostRef) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"no checkpoint of `{PLAN.model.name}`") as caught:
        prepare.ensure_checkpoint(PLAN, far, stage=False)
    assert "deploy stage" in caught.value.hint
    assert not [path for path in far.home.root.rglob("*") if path.is_file()]


def test_incomplete_remote_checkpoint_leaves_no_mirror(far: HostRef, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "there/models" / PLAN.model.name, layers=4, mtp_layer=78)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="incomplete or modified"):
        prepare.ensure_checkpoint(PLAN, far, stage=False)
    assert not [path for path in far.home.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("recipe", "is_reported"), [("wafer", True), ("amd52", False)])
def test_separate_shared_experts_of_remote_checkpoint_disable_fusion(
    far: HostRef, tmp_path: Path, recipe: str, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own headers, read over there before a start; unread, nothing is said of it."""
    unverified(monkeypatch)
    request = UpRequest(
        profile=PLAN.profile, name=None, overrides=(), host=far.remote, image=None, replace=False, keep_failed=False,
        stage=True, allow_untuned=False, strict_kernels=False, timeout=None,
    )  # fmt: skip
    write_tiny(tmp_path / "there/models" / PLAN.model.name, *Tiny(experts=256).quantized(recipe))
    source = request.source(far.home)
    assert decide_beforehand(request, source, far).plan == PLAN
    prepare.ensure_checkpoint(PLAN, far, stage=False)
    flags = {flag.name: flag for flag in decide_beforehand(request, source, far).plan.flags}
    assert ("disable-shared-experts-fusion" in flags) == is_reported
    if is_reported:
        assert "shared" in flags["disable-shared-experts-fusion"].source
