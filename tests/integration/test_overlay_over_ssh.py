"""Tests of patching the config of a checkpoint on a remote host, over a real ssh connection on loopback."""

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
from orchestrator.servers.start.plans import build_first_plan
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
def host_ref(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostRef]:
    """Return a remote host with a home of its own; the local home is empty."""
    local, remote = tmp_path / "local", tmp_path / "remote"
    (remote / "models").mkdir(parents=True)
    local.mkdir()
    ssh = tmp_path / "ssh"
    ssh.mkdir()
    with ssh_server(ssh, deploy_home=remote, monkeypatch=monkeypatch) as url:
        yield HostRef(home=Home(local), remote=url)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a remote checkpoint whose MTP layer has bf16 experts."""
    skip_verification(monkeypatch)
    folder = tmp_path / "remote/models" / PLAN.model.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, dtypes in TENSORS.items():
        write_tensors(folder / name, {tensor: (dtype, (1,)) for tensor, dtype in dtypes.items()})
    files = {tensor: name for name, tensors in TENSORS.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def skip_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every remote checkpoint, because those of these tests have only a few tensors."""

    def verify(mirror: Path, _model: Model, **_: object) -> VerifiedCheckpoint:
        receipt_path(mirror).write_text("{}")
        return VerifiedCheckpoint(
            directory=mirror, revision=None, files=0, size=0, shards=0, tensors=0, from_receipt=False, mismatches=()
        )

    monkeypatch.setattr(remote_download, "verify_checkpoint", verify)


def test_patched_config_is_copied_to_remote_host(host_ref: HostRef, checkpoint: Path, tmp_path: Path) -> None:
    """The file equals the one that the command writes when it runs on the remote host."""
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}

    prepare.ensure_checkpoint(PLAN, host_ref, stage=False)
    prepare.prepare_overlay(PREPARED, host_ref)
    with closing(DockerHost(host_ref.home, host_ref.remote)) as host:
        host.copy_files(container_spec(PLAN, "image"))

    copied = tmp_path / "remote" / OVERLAY
    patched = json.loads(copied.read_text())["quantization_config"]["exclude"]
    assert patched == [f"{LAYER}.eh_proj", "model.eh_proj", "model.decoder.mlp.experts"]
    text = copied.read_text()
    prepare.prepare_overlay(PREPARED, HostRef(home=Home(tmp_path / "remote")))
    assert copied.read_text() == text
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
    local_copy = host_ref.home.for_remote(host_ref.remote) / OVERLAY
    assert [path.name for path in local_copy.parent.iterdir()] == ["config.json"]  # no links to missing weights


def test_overlays_of_other_hosts_are_not_used(host_ref: HostRef, checkpoint: Path, tmp_path: Path) -> None:
    """Several hosts may hold different checkpoints under one name, and commands may prepare them at the same time."""
    prepare.ensure_checkpoint(PLAN, host_ref, stage=False)
    prepare.prepare_overlay(PREPARED, host_ref)
    for other in (HostRef(home=host_ref.home, remote=f"{host_ref.remote}/other.sock"), HostRef(home=host_ref.home)):
        other_overlay = host_ref.home.for_remote(other.remote) / OVERLAY
        other_overlay.parent.mkdir(parents=True)
        other_overlay.write_text("{}")

    with closing(DockerHost(host_ref.home, host_ref.remote)) as host:
        host.copy_files(container_spec(PLAN, "image"))

    original, overlay = (checkpoint / "config.json", tmp_path / "remote" / OVERLAY)
    assert json.loads(overlay.read_text()).keys() == json.loads(original.read_text()).keys()


def test_missing_remote_checkpoint_is_reported(host_ref: HostRef) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"no checkpoint of `{PLAN.model.name}`") as caught:
        prepare.ensure_checkpoint(PLAN, host_ref, stage=False)
    assert "deploy stage" in caught.value.hint
    assert not [path for path in host_ref.home.root.rglob("*") if path.is_file()]


def test_incomplete_remote_checkpoint_leaves_no_mirror(host_ref: HostRef, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "remote/models" / PLAN.model.name, layers=4, mtp_layer=78)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="incomplete or modified"):
        prepare.ensure_checkpoint(PLAN, host_ref, stage=False)
    assert not [path for path in host_ref.home.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("recipe", "is_reported"), [("wafer", True), ("amd52", False)])
def test_separate_shared_experts_of_remote_checkpoint_disable_fusion(
    host_ref: HostRef, tmp_path: Path, recipe: str, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is unchanged until the headers have been read on the remote host."""
    skip_verification(monkeypatch)
    request = UpRequest(
        profile=PLAN.profile, name=None, overrides=(), host=host_ref.remote, image=None, replace=False,
        keep_failed=False, stage=True, allow_untuned=False, strict_kernels=False, timeout=None,
    )  # fmt: skip
    write_tiny(tmp_path / "remote/models" / PLAN.model.name, *Tiny(experts=256).quantized(recipe))
    source = request.source(host_ref.home)
    assert build_first_plan(request, source, host_ref).plan == PLAN
    prepare.ensure_checkpoint(PLAN, host_ref, stage=False)
    flags = {flag.name: flag for flag in build_first_plan(request, source, host_ref).plan.flags}
    assert ("disable-shared-experts-fusion" in flags) == is_reported
    if is_reported:
        assert "shared" in flags["disable-shared-experts-fusion"].source
