"""Tests of `deploy stage` with an HTTP server on loopback as the hub, and with failures of network and disk."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_samples import write_checkpoint
from command_line import CommandLine
from loopback_hub import COMMIT, Hub, serve
from waits import TIMEOUT

from orchestrator.checkpoints.receipt import read_receipt
from orchestrator.core.paths import Home
from orchestrator.planner.lock import resolve
from orchestrator.planner.planning import load

REPOSITORY = "amd/GLM-5.2-MXFP4"
SECOND = "model-00002-of-00003.safetensors"
SIZE = 4_000_000
WITH_PEAK = """
import atexit, re
from orchestrator.cli.main import main
atexit.register(lambda: print(re.search("VmHWM.*", open("/proc/self/status").read())[0]))
main()
"""
CHUNK = 10 << 20  # huggingface_hub writes files in chunks of this size


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    source = write_checkpoint(tmp_path / "hub", size=SIZE, layers=4, mtp_layer=78)
    with serve(Hub(repository=REPOSITORY, directory=source)) as running:
        yield running


STAGE = ("stage", "--profile", "mi355x-tp8")


def deploy(hub: Hub, home: Path) -> CommandLine:
    return CommandLine(Home(home), {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf")})


def stage(hub: Hub, home: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return deploy(hub, home).run(*STAGE, "--dir", str(home / "glm"), *arguments, **more)


def test_checkpoint_is_downloaded_completely_and_once(hub: Hub, tmp_path: Path) -> None:
    done = stage(hub, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["revision"] == COMMIT
    assert (tmp_path / "glm" / SECOND).read_bytes() == (hub.directory / SECOND).read_bytes()
    assert re.search(r"100% of [1-9][0-9.]* [kM]?B", done.stderr)
    receipt = read_receipt(tmp_path / "glm")
    assert receipt is not None
    assert (receipt.revision, receipt.mtp_layer, receipt.shards) == (COMMIT, 78, 3)
    sent = dict(hub.sent)
    assert stage(hub, tmp_path).returncode == 0
    assert hub.sent == sent


def test_abbreviated_commit_is_resolved_and_revision_can_change(hub: Hub, tmp_path: Path) -> None:
    assert load("mi355x-tp8").plan.model.checkpoint.revision == COMMIT[:8]
    newest = stage(hub, tmp_path, "--revision", "main", "--json")
    assert json.loads(newest.stdout)["revision"] == COMMIT
    unknown = stage(hub, tmp_path, "--revision", "0123456")
    assert (unknown.returncode, "has no revision `0123456`" in unknown.stderr) == (4, True)


def test_interrupted_download_resumes(hub: Hub, tmp_path: Path) -> None:
    write_checkpoint(hub.directory, size=6 * CHUNK, layers=4, mtp_layer=78)
    hub.cuts[SECOND] = 4 * CHUNK
    broken = stage(hub, tmp_path)
    assert broken.returncode == 4
    assert "the download failed" in broken.stderr
    assert "run the same command again: it resumes at" in broken.stderr
    before = hub.sent[SECOND]
    hub.cuts.clear()
    hub.down = False
    again = stage(hub, tmp_path)
    assert again.returncode == 0, again.stderr
    assert [name for name, _ in hub.ranges] == [SECOND]
    assert hub.sent[SECOND] - before < 4 * CHUNK
    assert (tmp_path / "glm" / SECOND).read_bytes() == (hub.directory / SECOND).read_bytes()


def test_ctrl_c_ends_staging_without_leftover_processes(hub: Hub, tmp_path: Path) -> None:
    requested, released = threading.Event(), threading.Event()

    def delay() -> None:
        requested.set()
        released.wait()

    hub.before_body = delay
    with deploy(hub, tmp_path).running(*STAGE, "--dir", str(tmp_path / "glm")) as started:
        try:
            assert requested.wait(TIMEOUT)
            assert started.end(signal.SIGINT)[0] == 130  # while the hub delays the file
        finally:
            released.set()
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)


def test_concurrent_staging_is_rejected(hub: Hub, tmp_path: Path) -> None:
    parts = tmp_path / "glm" / ".parts"
    parts.mkdir(parents=True)
    with (parts / "fetched").open("a") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        second = stage(hub, tmp_path)
    assert (second.returncode, "another `deploy stage` is running" in second.stderr) == (4, True)
    assert hub.sent == {}


def test_truncated_local_shard_is_downloaded_again(hub: Hub, tmp_path: Path) -> None:
    assert stage(hub, tmp_path).returncode == 0
    sent = dict(hub.sent)
    os.truncate(tmp_path / "glm" / SECOND, 100)
    assert stage(hub, tmp_path).returncode == 0
    assert [name for name in hub.sent if hub.sent[name] != sent[name]] == [SECOND]


def test_same_size_file_with_different_content_is_replaced(hub: Hub, tmp_path: Path) -> None:
    config = hub.directory / "config.json"
    (tmp_path / "glm").mkdir()
    (tmp_path / "glm" / "config.json").write_bytes(config.read_bytes().replace(b"small", b"other"))
    shutil.copy(hub.directory / SECOND, tmp_path / "glm")
    assert stage(hub, tmp_path).returncode == 0
    assert (tmp_path / "glm" / "config.json").read_bytes() == config.read_bytes()
    assert SECOND not in hub.sent


def test_size_mismatch_with_hub_listing_fails(hub: Hub, tmp_path: Path) -> None:
    hub.sizes[SECOND] = (hub.directory / SECOND).stat().st_size + 5
    done = stage(hub, tmp_path)
    assert done.returncode == 4
    assert f"{hub.sizes[SECOND]}" in done.stderr


@pytest.mark.parametrize("damage", ["missing", "header", "no-mtp"])
def test_incomplete_repository_is_rejected(hub: Hub, tmp_path: Path, damage: str) -> None:
    if damage == "missing":
        (hub.directory / SECOND).unlink()
        expected = f"`{SECOND}` is missing"
    elif damage == "header":
        (hub.directory / SECOND).write_bytes(b"\xff" * 500)
        expected = f"`{SECOND}` has no safetensors header"
    else:
        shutil.rmtree(hub.directory)
        write_checkpoint(hub.directory, mtp_layer=None)
        expected = "no tensor of the MTP layer (`model.layers.78.`) found"
    done = stage(hub, tmp_path)
    assert done.returncode == 4
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert read_receipt(tmp_path / "glm") is None


def test_gated_repository_uses_token_without_leaking_it(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_" + "a" * 34
    result = stage(hub, tmp_path)
    assert result.returncode == 4
    assert "export HF_TOKEN" in result.stderr
    done = stage(hub, tmp_path, HF_TOKEN=hub.token)
    assert done.returncode == 0, done.stderr
    assert hub.tokens == {f"Bearer {hub.token}"}
    assert hub.token not in done.stdout + done.stderr
    assert not any(hub.token in path.read_text(errors="replace") for path in tmp_path.glob("*.json"))


def test_missing_revision_or_repository_is_reported(hub: Hub, tmp_path: Path) -> None:
    revision = stage(hub, tmp_path, "--set", "model.checkpoint.revision=nowhere")
    assert (revision.returncode, "has no revision `nowhere`" in revision.stderr) == (4, True)
    repository = stage(hub, tmp_path, "--set", "model.checkpoint.path=amd/nothing")
    assert (repository.returncode, "no repository `amd/nothing`" in repository.stderr) == (4, True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE * 5},mode=0700", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_disk_filling_up_during_staging_is_reported(hub: Hub, small_disk: Path) -> None:
    ballast = small_disk / "ballast"

    def fill() -> None:
        if not ballast.exists():
            ballast.write_bytes(bytes(SIZE * 4))

    hub.before_body = fill
    full = stage(hub, small_disk)
    assert full.returncode == 4
    assert "the disk is full" in full.stderr
    assert "run the same command again" in full.stderr
    hub.before_body = lambda: None
    early = stage(hub, small_disk)
    assert (early.returncode, "not enough disk space" in early.stderr) == (4, True)
    ballast.unlink()
    assert stage(hub, small_disk).returncode == 0


def test_large_local_checkpoints_are_verified_in_bounded_memory(hub: Hub, tmp_path: Path) -> None:
    big = write_checkpoint(tmp_path / "big", shards=10, size=5 * 10**9, layers=40, mtp_layer=78)
    many = write_checkpoint(tmp_path / "many", shards=10_000, size=100, mtp_layer=78)
    for directory in (big, many):
        origin = ["--set", "model.checkpoint.source=local", "--set", f"model.checkpoint.path={directory}"]
        argv = [sys.executable, "-c", WITH_PEAK, *STAGE, *origin]
        environ = {**os.environ, "HF_ENDPOINT": hub.url, "DEPLOY_HOME": str(tmp_path)}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[-2]) < 200 << 10  # KiB
        assert read_receipt(directory) is not None


def test_mismatched_model_aborts_download_early(hub: Hub, tmp_path: Path) -> None:
    """The config is checked before the 438 GB of weights are downloaded."""
    (hub.directory / "config.json").write_text('{"num_hidden_layers": 61}')
    hub.withheld = SECOND
    result = stage(hub, tmp_path)
    assert result.returncode == 4
    assert "`model.layers` is `78`, the checkpoint's `num_hidden_layers` is `61`" in result.stderr
    assert f"--> {tmp_path}/glm/config.json" in result.stderr
    assert "`deploy show mi355x-tp8 --explain`" in result.stderr


def test_unreachable_hub_is_reported_once(hub: Hub, tmp_path: Path) -> None:
    """huggingface_hub requests the list of commits six times and logs each failure."""
    result = stage(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert result.returncode == 4
    assert result.stderr.splitlines()[0].startswith("error: cannot reach the hub: ")
    assert "--> http://127.0.0.1:9" in result.stderr


def test_lockfile_contains_hub_hash_of_every_file(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_abcdefghijklmnopqrstuvwx"
    environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token}
    lockfile = resolve("mi355x-tp8", ("engine.image_digest=sha256:" + 64 * "a",), Home(tmp_path), environ)
    hashes = {str(file["path"]): f"{file['size']} {file['oid']}" for file in hub.listing()}
    assert lockfile.checkpoint == {"commit": COMMIT, **hashes}
    assert f"model.checkpoint.revision={COMMIT}" in lockfile.overrides
    assert hub.tokens == {f"Bearer {hub.token}"}
    assert hub.token not in lockfile.text
