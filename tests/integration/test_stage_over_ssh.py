"""Tests of `deploy stage --host` with a hub on loopback, over a real ssh connection to this machine."""

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
from rocm_image import base_image
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
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one ssh server for all tests; each test uses its own directory."""
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


def words_of(host: str, tmp_path: Path) -> list[str]:
    return ["stage", "--profile", "mi355x-tp8", "--host", host, "--dir", str(tmp_path / "glm")]


def deploy(hub: Hub, tmp_path: Path) -> CommandLine:
    return CommandLine(Home(tmp_path / "local"), {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)})


def stage(hub: Hub, tmp_path: Path, host: str, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return deploy(hub, tmp_path).run(*words_of(host, tmp_path), *words, **more)


def test_remote_staging_is_complete_and_hides_token(hub: Hub, host: str, tmp_path: Path) -> None:
    hub.token = TOKEN
    leaks: list[str] = []
    hub.before_body = lambda: leaks.extend(processes_with(TOKEN))

    done = stage(hub, tmp_path, host, "--json", HF_TOKEN=TOKEN)

    assert done.returncode == 0, done.stderr
    directory = tmp_path / "glm"
    report = json.loads(done.stdout)
    assert (report["revision"], report["directory"], report["shards"]) == (COMMIT, str(directory), 3)
    assert re.search(r"100% of [1-9][0-9.]* [kM]?B", done.stderr)
    assert (directory / SECOND).read_bytes() == (hub.directory / SECOND).read_bytes()
    assert verify_checkpoint(directory, PLAN.model, speculative=True).from_receipt, "the receipt is invalid"
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert (leaks, TOKEN in done.stdout + done.stderr) == ([], False)
    assert not any(TOKEN in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert not (tmp_path / "local/models").exists(), "files were left on the local host"
    sent = dict(hub.sent)
    assert stage(hub, tmp_path, host, HF_TOKEN=TOKEN).returncode == 0
    assert hub.sent == sent


def test_interrupted_remote_download_resumes(hub: Hub, host: str, tmp_path: Path) -> None:
    write_checkpoint(hub.directory, size=6 * PIECE, layers=4, mtp_layer=78)
    hub.cuts[SECOND] = 4 * PIECE
    broken = stage(hub, tmp_path, host)
    assert broken.returncode == 4
    assert "the download failed: HTTP Error 503" in broken.stderr
    assert "run the same command again: it resumes at" in broken.stderr
    before = hub.sent[SECOND]
    hub.cuts.clear()
    hub.down = False
    again = stage(hub, tmp_path, host)
    assert again.returncode == 0, again.stderr
    assert {name for name, _ in hub.ranges} == {SECOND}
    assert hub.sent[SECOND] - before < 3 * PIECE
    assert (tmp_path / "glm" / SECOND).read_bytes() == (hub.directory / SECOND).read_bytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("room", "B needed,"),
        ("header", f"`{SECOND}` has no safetensors header"),
        ("missing", f"`{SECOND}` is missing"),
    ],
)
def test_incomplete_remote_checkpoint_is_reported_with_host(
    hub: Hub, host: str, tmp_path: Path, damage: str, message: str
) -> None:
    if damage == "room":
        hub.sizes[SECOND] = 10**16
    elif damage == "header":
        (hub.directory / SECOND).write_bytes(b"\xff" * 500)
    else:
        (hub.directory / SECOND).unlink()
    done = stage(hub, tmp_path, host)
    assert done.returncode == 4
    assert message in done.stderr
    assert f"{host}: {tmp_path / 'glm'}" in done.stderr
    assert read_receipt(tmp_path / "glm") is None
    if damage == "room":
        assert hub.sent == {}, "files were downloaded before the check of disk space"


def ensure_staged(host: str, tmp_path: Path, *, allowed: bool = True) -> VerifiedCheckpoint:
    """Stage the checkpoint as `up` does."""
    return staging.ensure_staged_remote(PLAN, str(tmp_path / "glm"), host, allowed=allowed, mirror=None)


def test_up_downloads_only_missing_remote_checkpoint(
    hub: Hub, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    directory = tmp_path / "glm"
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of") as caught:
        ensure_staged(host, tmp_path, allowed=False)
    assert (caught.value.location, hub.sent) == (f"{host}: {directory}", {})
    assert "`deploy stage PROFILE --host ssh://" in caught.value.hint
    assert ensure_staged(host, tmp_path).shards == 3
    hub.down = True  # the hub is not needed from here on
    assert ensure_staged(host, tmp_path, allowed=False).from_receipt
    receipt_path(directory).unlink()
    assert not ensure_staged(host, tmp_path).from_receipt, "without a receipt, the headers must be read"
    (directory / SECOND).write_bytes(b"")
    with pytest.raises(CheckpointModifiedError, match="incomplete or modified") as changed:
        ensure_staged(host, tmp_path)
    assert changed.value.problems_or_self()[0].location.startswith(f"{host}: {directory}")


@pytest.mark.docker
@pytest.mark.wheels
def test_up_runs_preflight_before_remote_staging(
    hub: Hub, tmp_path: Path, docker_daemon: DockerCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remote host lacks the GPUs of the profile; `up` used to report this only after a download of 438 GB."""
    (hub.directory / "config.json").write_text(json.dumps(WHOLE_CONFIG))
    home, ssh = tmp_path / "remote", tmp_path / "ssh"
    ssh.mkdir()
    base = base_image(wheel("0.5.16"), docker=docker_daemon.program)
    image = ("--set", f"engine.image={base}", "--profile", "mi355x-tp8", "--allow-untuned")
    with ssh_server(ssh, deploy_home=home, monkeypatch=monkeypatch) as url:
        done = deploy(hub, tmp_path).run("up", "--host", url, *image)
    assert "error: the host is not ready for `mi355x-tp8`" in done.stderr
    assert (hub.sent, (home / "models").exists()) == ({}, False)
    assert not (tmp_path / "local/models").exists()


def test_mismatched_remote_checkpoint_is_not_reported_as_incomplete(hub: Hub, host: str, tmp_path: Path) -> None:
    (hub.directory / "config.json").write_text(json.dumps(WHOLE_CONFIG | {"num_hidden_layers": 61}))
    done = stage(hub, tmp_path, host)
    assert done.returncode == 4
    assert "`model.layers` is `78`, the checkpoint's `num_hidden_layers` is `61`" in done.stderr
    assert f"--> {host}: {tmp_path}/glm/config.json" in done.stderr
    assert "downloads missing files" not in done.stderr


def test_ctrl_c_ends_staging_on_both_hosts(hub: Hub, host: str, tmp_path: Path) -> None:
    requested, released = threading.Event(), threading.Event()

    def delay() -> None:
        requested.set()
        released.wait()

    hub.before_body = delay
    with deploy(hub, tmp_path).running(*words_of(host, tmp_path)) as started:
        try:
            assert requested.wait(TIMEOUT)
            assert started.end(signal.SIGINT)[0] == 130  # while the hub delays the file
            wait_for(lambda: not processes_with("sent to a far machine as text"))
        finally:
            released.set()


def test_unreachable_staging_host_is_reported(hub: Hub, tmp_path: Path) -> None:
    done = stage(hub, tmp_path, "ssh://127.0.0.1:9")
    assert done.returncode == 4
    assert "error: cannot stage on ssh://127.0.0.1:9" in done.stderr
    assert "Connection refused" in done.stderr
    assert "check that ssh connects without a prompt" in done.stderr


def test_existing_remote_checkpoint_is_verified_in_place(hub: Hub, host: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "share", mtp_layer=78)
    settings = ("--set", "model.checkpoint.source=local", "--set", f"model.checkpoint.path={directory}")
    words = (*settings, "--dir", str(directory))
    assert stage(hub, tmp_path, host, *words).returncode == 0
    assert read_receipt(directory) is not None
    (directory / SECOND).unlink()
    result = stage(hub, tmp_path, host, *words)
    assert (result.returncode, f"`{SECOND}` is missing" in result.stderr) == (4, True)


@pytest.mark.parametrize("module", [remote_fetch, safe_paths])
def test_remote_program_supports_old_python(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 8))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {"__future__", "collections.abc", "concurrent.futures", "contextlib", "pathlib", "typing"}
    assert imported <= allowed | {"orchestrator.core.safe_paths"}
    newer_methods = {"is_relative_to", "removeprefix", "removesuffix", "readlink", "hardlink_to"}
    assert not newer_methods & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
