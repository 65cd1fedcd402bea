"""`deploy stage --host`: a hub on loopback, a real ssh connection; the far machine is this one, under another home."""

import ast
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from checkpoint_samples import write_checkpoint
from command_line import CommandLine, processes_with
from kernel_samples import WHOLE_CONFIG
from loopback_hub import COMMIT, Hub, serve
from loopback_ssh import needs_sshd, ssh_server
from standin import base_image
from waits import TIMEOUT, wait_for
from wheels import wheel

from orchestrator.checkpoints import remote_fetch, staging
from orchestrator.checkpoints.receipt import read_receipt, receipt_path
from orchestrator.checkpoints.verify import VerifiedCheckpoint, verify_checkpoint
from orchestrator.core import safe_paths
from orchestrator.core.errors import CheckpointModifiedError, CheckpointNotFoundError
from orchestrator.core.paths import Home
from orchestrator.images.client import DockerCli
from orchestrator.planner.planning import load

pytestmark = needs_sshd

PLAN = load("mi355x-tp8").plan
SECOND = "model-00002-of-00003.safetensors"
PIECE = 1 << 20
TOKEN = "hf_" + "b" * 34


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One machine for all tests; each takes a directory of its own there."""
    folder = tmp_path_factory.mktemp("ssh")
    with (
        pytest.MonkeyPatch.context() as patch,
        ssh_server(folder, deploy_home=folder / "home", monkeypatch=patch) as url,
    ):
        yield url


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    source = write_checkpoint(tmp_path / "hub", size=100_000, layers=4, mtp_layer=78)
    with serve(Hub(repository="amd/GLM-5.2-MXFP4", directory=source)) as running:
        yield running


def words_of(far: str, tmp_path: Path) -> list[str]:
    return ["stage", "--profile", "mi355x-tp8", "--host", far, "--dir", str(tmp_path / "glm")]


def deploy(hub: Hub, tmp_path: Path) -> CommandLine:
    return CommandLine(Home(tmp_path / "here"), {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)})


def stage(hub: Hub, tmp_path: Path, far: str, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return deploy(hub, tmp_path).run(*words_of(far, tmp_path), *words, **more)


def test_remote_staging_is_complete_and_hides_token(hub: Hub, far: str, tmp_path: Path) -> None:
    hub.token = TOKEN
    seen: list[str] = []
    hub.before_body = lambda: seen.extend(processes_with(TOKEN))

    done = stage(hub, tmp_path, far, "--json", HF_TOKEN=TOKEN)

    assert done.returncode == 0, done.stderr
    there = tmp_path / "glm"
    report = json.loads(done.stdout)
    assert (report["revision"], report["directory"], report["shards"]) == (COMMIT, str(there), 3)
    assert re.search(r"100% of [1-9][0-9.]* [kM]?B", done.stderr)
    assert (there / SECOND).read_bytes() == (hub.directory / SECOND).read_bytes()
    assert verify_checkpoint(there, PLAN.model, speculative=True).from_receipt, "its receipt holds over there"
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert (seen, TOKEN in done.stdout + done.stderr) == ([], False)
    assert not any(TOKEN in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert not (tmp_path / "here/models").exists(), "nothing is kept here"
    sent = dict(hub.sent)
    assert stage(hub, tmp_path, far, HF_TOKEN=TOKEN).returncode == 0
    assert hub.sent == sent


def test_interrupted_remote_download_resumes(hub: Hub, far: str, tmp_path: Path) -> None:
    write_checkpoint(hub.directory, size=6 * PIECE, layers=4, mtp_layer=78)
    hub.cuts[SECOND] = 4 * PIECE
    broken = stage(hub, tmp_path, far)
    assert broken.returncode == 4
    assert "the download failed: HTTP Error 503" in broken.stderr
    assert "run the same command again: it resumes at" in broken.stderr
    before = hub.sent[SECOND]
    hub.cuts.clear()
    hub.down = False
    again = stage(hub, tmp_path, far)
    assert again.returncode == 0, again.stderr
    assert {name for name, _ in hub.ranges} == {SECOND}
    assert hub.sent[SECOND] - before < 3 * PIECE
    assert (tmp_path / "glm" / SECOND).read_bytes() == (hub.directory / SECOND).read_bytes()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("room", "B needed,"),
        ("header", f"`{SECOND}` has no safetensors header"),
        ("missing", f"`{SECOND}` is missing"),
    ],
)
def test_incomplete_remote_checkpoint_is_reported_with_host(
    hub: Hub, far: str, tmp_path: Path, harm: str, message: str
) -> None:
    if harm == "room":
        hub.sizes[SECOND] = 10**16
    elif harm == "header":
        (hub.directory / SECOND).write_bytes(b"\xff" * 500)
    else:
        (hub.directory / SECOND).unlink()
    done = stage(hub, tmp_path, far)
    assert done.returncode == 4
    assert message in done.stderr
    assert f"{far}: {tmp_path / 'glm'}" in done.stderr
    assert read_receipt(tmp_path / "glm") is None
    if harm == "room":
        assert hub.sent == {}, "the disk is looked at first"


def bring(far: str, tmp_path: Path, *, allowed: bool = True) -> VerifiedCheckpoint:
    """As an `up` does on its way."""
    return staging.ensure_staged_remote(PLAN, str(tmp_path / "glm"), far, allowed=allowed, mirror=None)


def test_up_downloads_only_missing_remote_checkpoint(
    hub: Hub, far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    there = tmp_path / "glm"
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of") as refused:
        bring(far, tmp_path, allowed=False)
    assert (refused.value.location, hub.sent) == (f"{far}: {there}", {})
    assert "`deploy stage PROFILE --host ssh://" in refused.value.hint
    assert bring(far, tmp_path).shards == 3
    hub.down = True  # from here on nobody is asked
    assert bring(far, tmp_path, allowed=False).from_receipt
    receipt_path(there).unlink()
    assert not bring(far, tmp_path).from_receipt, "whole without a receipt, as its headers say"
    (there / SECOND).write_bytes(b"")
    with pytest.raises(CheckpointModifiedError, match="incomplete or modified") as changed:
        bring(far, tmp_path)
    assert changed.value.problems_or_self()[0].location.startswith(f"{far}: {there}")


@pytest.mark.docker
@pytest.mark.wheels
def test_up_runs_preflight_before_remote_staging(
    hub: Hub, tmp_path: Path, docker_daemon: DockerCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remote host has no GPU of the profile: 438 GB were downloaded there before that was told."""
    (hub.directory / "config.json").write_text(json.dumps(WHOLE_CONFIG))
    home, ssh = tmp_path / "there", tmp_path / "ssh"
    ssh.mkdir()
    base = base_image(wheel("0.5.16"), docker=docker_daemon.program)
    image = ("--set", f"engine.image={base}", "--profile", "mi355x-tp8", "--allow-untuned")
    with ssh_server(ssh, deploy_home=home, monkeypatch=monkeypatch) as url:
        done = deploy(hub, tmp_path).run("up", "--host", url, *image)
    assert "error: the host is not ready for `mi355x-tp8`" in done.stderr
    assert (hub.sent, (home / "models").exists()) == ({}, False)
    assert not (tmp_path / "here/models").exists()


def test_mismatched_remote_checkpoint_is_not_reported_as_incomplete(hub: Hub, far: str, tmp_path: Path) -> None:
    (hub.directory / "config.json").write_text(json.dumps(WHOLE_CONFIG | {"num_hidden_layers": 61}))
    done = stage(hub, tmp_path, far)
    assert done.returncode == 4
    assert "`model.layers` is `78`, the checkpoint's `num_hidden_layers` is `61`" in done.stderr
    assert f"--> {far}: {tmp_path}/glm/config.json" in done.stderr
    assert "downloads missing files" not in done.stderr


def test_ctrl_c_ends_staging_on_both_hosts(hub: Hub, far: str, tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        go_on.wait()

    hub.before_body = hold
    with deploy(hub, tmp_path).running(*words_of(far, tmp_path)) as started:
        try:
            assert reached.wait(TIMEOUT)
            assert started.end(signal.SIGINT)[0] == 130  # while the hub holds the file back
            wait_for(lambda: not processes_with("sent to a far machine as text"))
        finally:
            go_on.set()


def test_unreachable_staging_host_is_reported(hub: Hub, tmp_path: Path) -> None:
    done = stage(hub, tmp_path, "ssh://127.0.0.1:9")
    assert done.returncode == 4
    assert "error: cannot stage on ssh://127.0.0.1:9" in done.stderr
    assert "Connection refused" in done.stderr
    assert "check that ssh connects without a prompt" in done.stderr


def test_existing_remote_checkpoint_is_verified_in_place(hub: Hub, far: str, tmp_path: Path) -> None:
    there = write_checkpoint(tmp_path / "share", mtp_layer=78)
    origin = ("--set", "model.checkpoint.source=local", "--set", f"model.checkpoint.path={there}", "--dir", str(there))
    assert stage(hub, tmp_path, far, *origin).returncode == 0
    assert read_receipt(there) is not None
    (there / SECOND).unlink()
    refused = stage(hub, tmp_path, far, *origin)
    assert (refused.returncode, f"`{SECOND}` is missing" in refused.stderr) == (4, True)


@pytest.mark.parametrize("module", [remote_fetch, safe_paths])
def test_remote_program_supports_old_python(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 8))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {"orchestrator.core.safe_paths"}
    assert imported <= {"__future__", "collections.abc", "concurrent.futures", "contextlib", "pathlib", "typing", *ours}
    newer = {"is_relative_to", "removeprefix", "removesuffix", "readlink", "hardlink_to"}
    assert not newer & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
