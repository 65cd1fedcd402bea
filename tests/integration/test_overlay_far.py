"""The patched config of a far checkpoint, over a real ssh connection on loopback; the far machine is this one."""

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from loopback_ssh import needs_sshd, ssh_server
from quark_samples import Tiny, write_tiny

from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.docker.container import container_spec
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.servers.start import prepare
from orchestrator.servers.start.decisions import decide_beforehand
from orchestrator.servers.start.request import UpRequest

pytestmark = needs_sshd

PLAN = load("mi355x-tp8-july").plan
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
        yield HostRef(home=Home(here), far=url)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint on the far machine whose MTP layer has its experts in bf16."""
    folder = tmp_path / "there/models" / PLAN.model.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, dtypes in TENSORS.items():
        header = {tensor: {"dtype": dtype, "shape": [1], "data_offsets": [0, 2]} for tensor, dtype in dtypes.items()}
        text = json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + b"\0\n")
    places = {tensor: name for name, tensors in TENSORS.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


@pytest.mark.parametrize("index", [True, False])
def test_the_patched_config_reaches_the_far_machine(
    far: HostRef, checkpoint: Path, tmp_path: Path, index: bool
) -> None:
    """What is written there is what the same command would have written there itself."""
    if not index:
        (checkpoint / "model.safetensors.index.json").unlink()
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}

    prepare._overlay(PLAN, far, frozenset())
    with closing(DockerHost(far.home, far.far)) as host:
        host.copy_files(container_spec(PLAN, "image"))

    carried = tmp_path / "there" / OVERLAY
    patched = json.loads(carried.read_text())["quantization_config"]["exclude"]
    assert patched == [f"{LAYER}.eh_proj", "model.eh_proj", "model.decoder.mlp.experts"]
    text = carried.read_text()
    prepare._overlay(PLAN, HostRef(home=Home(tmp_path / "there")), frozenset())
    assert carried.read_text() == text
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
    made = far.home.made_for(far.far) / OVERLAY
    assert [path.name for path in made.parent.iterdir()] == ["config.json"]  # no link to nowhere


def test_what_is_made_for_another_machine_is_not_taken_for_it(far: HostRef, checkpoint: Path, tmp_path: Path) -> None:
    """Two machines, and this one, may hold other checkpoints under one name; two commands may prepare them at once."""
    prepare._overlay(PLAN, far, frozenset())
    for other in (HostRef(home=far.home, far=f"{far.far}/other.sock"), HostRef(home=far.home)):
        elsewhere = far.home.made_for(other.far) / OVERLAY
        elsewhere.parent.mkdir(parents=True)
        elsewhere.write_text("{}")

    with closing(DockerHost(far.home, far.far)) as host:
        host.copy_files(container_spec(PLAN, "image"))

    theirs, ours = (json.loads(path.read_text()) for path in (checkpoint / "config.json", tmp_path / "there" / OVERLAY))
    assert ours.keys() == theirs.keys()


def test_a_far_machine_without_the_checkpoint_says_so(far: HostRef) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint on that machine") as caught:
        prepare._overlay(PLAN, far, frozenset())
    assert "deploy stage" in caught.value.hint
    assert not far.home.made_for(far.far).exists()


def test_a_far_shard_that_is_missing_is_named(far: HostRef, checkpoint: Path) -> None:
    (checkpoint / "b é.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"`b é\.safetensors` is missing"):
        prepare._overlay(PLAN, far, frozenset())
    assert not far.home.made_for(far.far).exists()


def test_a_far_shard_that_is_none_is_named(far: HostRef, checkpoint: Path) -> None:
    (checkpoint / "b é.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="git-lfs pointer") as caught:
        prepare._overlay(PLAN, far, frozenset())
    assert caught.value.where == f"{far.far}: models/glm-5.2-mxfp4/b é.safetensors"
    assert not far.home.made_for(far.far).exists()


@pytest.mark.parametrize(("recipe", "told"), [("wafer", True), ("amd52", False)])
def test_a_far_checkpoint_whose_shared_experts_are_kept_apart_is_told_not_to_fuse(
    far: HostRef, tmp_path: Path, recipe: str, told: bool
) -> None:
    """By its own headers, read over there before a start; unread, nothing is said of it."""
    request = UpRequest(
        profile=PLAN.profile, name=None, overrides=(), host=far.far, image=None, replace=False, keep=False, stage=True,
        accept_untuned=False, strict_kernels=False, timeout=None,
    )  # fmt: skip
    write_tiny(tmp_path / "there/models" / PLAN.model.name, *Tiny(experts=256).quantised(recipe))
    source = request.source(far.home)
    assert decide_beforehand(request, source, far).plan == PLAN
    assert prepare.fetch_remote_headers(PLAN, far) is not None
    flags = {flag.name: flag for flag in decide_beforehand(request, source, far).plan.flags}
    assert ("disable-shared-experts-fusion" in flags) == told
    if told:
        assert "shared" in flags["disable-shared-experts-fusion"].source
