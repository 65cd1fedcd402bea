"""On a full disk, the error of each command names the path that it could not write.

The disk is a tmpfs that is resized to the space in use.
"""

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changing_commands import CHANGING, Changing, Workspace, made, words_of, workspace_of
from deployment import Deployment
from forked import Ended, Forks
from gateway_pair import NAME, pair_in
from ports import free_port
from waits import wait_for

pytestmark = pytest.mark.attack

REMOVING = {"prune", "prune --caches"}
MAKING = {name: command for name, command in CHANGING.items() if name not in {*REMOVING, "reproduce"}}
MORE = {
    "kernels check": Changing(
        words=words_of("kernels check {sources}/log --untuned {made}/untuned.csv"), is_done=made("untuned.csv")
    ),
    "watch --install": Changing(
        words=words_of("watch target --install --output {made}/watch.service"), is_done=made("watch.service")
    ),
    "up": Changing(
        words=lambda workspace: workspace.deployment.up(name="another"),
        is_done=lambda workspace: any(workspace.home.glob("runs/another/*/smoke.json")),
    ),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=0700", "none", folder], check=False)
    if mounted.returncode:
        pytest.skip("a small file system takes the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path, left: int = 0, files: int = 0) -> None:
    """Resize the disk so that `left` bytes are free, and `files` inodes if given."""
    if files:
        used_files = os.statvfs(disk).f_files - os.statvfs(disk).f_ffree
        subprocess.run(["mount", "-o", f"remount,nr_inodes={used_files + files}", disk], check=True)
    while True:
        used = subprocess.run(
            ["df", "--block-size=1", "--output=used", disk], capture_output=True, text=True, check=True
        )
        size = int(used.stdout.split()[-1]) + left
        remounted = subprocess.run(["mount", "-o", f"remount,size={size}", disk], capture_output=True, check=False)
        if remounted.returncode == 0:
            return  # otherwise a server has written something since `df`


@pytest.fixture
def workspace(forks: Forks, disk: Path, tmp_path: Path) -> Iterator[Workspace]:
    """Put the home and the results on the small disk, and the sources elsewhere."""
    deployment = Deployment(forks, disk, free_port(), output=tmp_path / "output")
    deployment.home.mkdir()
    with workspace_of(deployment, tmp_path) as workspace:
        (disk / "made").mkdir()
        yield replace(workspace, made=disk / "made")
    deployment.end()


def names_full_disk(ended: Ended, disk: Path) -> bool:
    """Return whether the error, not an earlier message, says that the disk is full and names the path."""
    message = ended.stderr.rpartition("error: ")[2]
    return ("No space left on device" in message or "B free" in message) and str(disk) in message


@pytest.mark.parametrize("name", [*MAKING, *MORE])
def test_full_disk_error_names_the_path(workspace: Workspace, disk: Path, name: str) -> None:
    command = {**MAKING, **MORE}[name]
    words = workspace.call(command)
    fill(disk)
    ended = workspace.start(*words).wait()
    assert not list(ended.faults(2, 4, 10))
    assert not command.is_done(workspace)
    assert names_full_disk(ended, disk), ended.stderr


def test_disk_filling_up_during_quantization_is_reported(workspace: Workspace, disk: Path) -> None:
    """The workers write the error to their own logs."""
    running = workspace.start(*CHANGING["quantize"].words(workspace), FAKE_QUARK="sleep 0.4")
    wait_for(lambda: any(workspace.made.glob("made.quantizing/checkpoint/*.safetensors")) or running.ends_within(0))
    fill(disk)
    ended = running.wait()
    assert not list(ended.faults(4))
    assert names_full_disk(ended, disk), ended.stderr


@pytest.mark.parametrize("name", sorted(REMOVING))
def test_removal_commands_work_on_full_disk(workspace: Workspace, disk: Path, name: str) -> None:
    fill(disk)
    assert not list(workspace.start(*CHANGING[name].words(workspace)).wait().faults(0))
    assert CHANGING[name].is_done(workspace)


@pytest.mark.parametrize(
    ("bytes_left", "files_left"), [(16 << 10, 0), (256 << 10, 0), (4 << 20, 4), (4 << 20, 12)], ids=str
)
def test_restart_on_nearly_full_disk_keeps_old_server(
    workspace: Workspace, disk: Path, bytes_left: int, files_left: int
) -> None:
    """A start writes less than 1 MiB and 32 files; without this space, the old server is not stopped."""
    server = workspace.deployment
    assert not list(server.run(*server.up()).faults(0))
    fill(disk, left=bytes_left, files=files_left)
    ended = workspace.start("restart", server.name).wait()
    assert not list(ended.faults(4))
    assert names_full_disk(ended, disk), ended.stderr
    assert "the old server" not in ended.stderr
    assert not list(workspace.start("status", server.name).wait().faults(0))


def test_restart_reserves_space_before_stopping_old_server(workspace: Workspace, disk: Path) -> None:
    """The space is reserved until the old server has stopped, after its termination grace of two seconds."""
    server = workspace.deployment
    assert not list(server.run(*server.up("SCRIPTED_DEAF=1")).faults(0))
    running = workspace.start("restart", server.name)
    wait_for(lambda: "to replace it" in running.stderr or running.ends_within(0))
    fill(disk)
    assert not list(running.wait().faults(0))
    assert not list(workspace.start("status", server.name).wait().faults(0))
    assert not list(workspace.home.glob("runs/*/.reserved-*"))


def test_disk_filling_up_during_rollout_keeps_replicas_running(disk: Path) -> None:
    """The space for the first replica is reserved; the second replica is not stopped."""
    with pair_in(disk) as pair:
        pair.up("env.SCRIPTED_DEAF=1")
        with pair.deploy.running("restart", NAME) as restart:
            restart.wait_for("draining")
            fill(disk)
            code, _, message = restart.wait()
        assert (code, "No space left on device" in message) == (4, True), message
        assert pair.deploy.run("status", NAME).returncode == 0


def test_space_reserved_by_killed_command_is_released(workspace: Workspace) -> None:
    server = workspace.deployment
    assert not list(server.run(*server.up("SCRIPTED_DEAF=1")).faults(0))
    running = workspace.start("restart", server.name)
    wait_for(lambda: "to replace it" in running.stderr or running.ends_within(0))
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert list(workspace.home.glob("runs/*/.reserved-*"))
    assert not list(workspace.start(*server.up("--replace")).wait().faults(0))
    assert not list(workspace.home.glob("runs/*/.reserved-*"))


def test_server_stopped_on_full_disk_is_not_restarted(workspace: Workspace, disk: Path) -> None:
    """Otherwise `deploy watch` would restart the server."""
    server = workspace.deployment
    assert not list(server.run(*server.up()).faults(0))
    fill(disk)
    assert not list(workspace.start("down", server.name).wait().faults(0))
    assert "no server" in workspace.start("status", server.name).wait().stderr
    snapshot = worker(workspace, "snapshot", server.name)
    assert snapshot["wanted"] is False, snapshot


def worker(workspace: Workspace, *words: str) -> dict[str, Any]:
    """Run the worker program of `deploy watch`; return its JSON."""
    argv = [sys.executable, "-m", "orchestrator.servers.watch.worker", *words]
    environ = {**os.environ, "DEPLOY_HOME": str(workspace.home)}
    answer: dict[str, Any] = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, env=environ, check=True).stdout)
    return answer


def test_server_restarted_by_watch_stays_stopped_on_full_disk(workspace: Workspace, disk: Path) -> None:
    server = workspace.deployment
    assert not list(server.run(*server.up()).faults(0))
    snapshot = worker(workspace, "snapshot", server.name)
    assert worker(workspace, "restart", server.name, snapshot["run"], "a test")["outcome"] == "verified"
    snapshot = worker(workspace, "snapshot", server.name)
    assert (snapshot["by_watch"], snapshot["wanted"]) == (True, True), snapshot
    fill(disk)
    assert not list(workspace.start("down", server.name).wait().faults(0))
    snapshot = worker(workspace, "snapshot", server.name)
    assert snapshot["wanted"] is False, snapshot


@pytest.mark.parametrize("words", ["add engine 9.9.9 --flags-only --wheel {wheel}", "patches check --wheel {wheel}"])
def test_full_disk_error_names_wheel_extraction_directory(workspace: Workspace, disk: Path, words: str) -> None:
    wheel = workspace.sources / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/_version.py", "version = '9.9.9'\n")
        archive.writestr("sglang/srt/large.py", "#" * (8 << 20))
        archive.writestr("sglang/srt/configs/model_config.py", "#" * (8 << 20))
    (disk / "tmp").mkdir()
    fill(disk, left=64 << 10)
    ended = workspace.start(*words.format(wheel=wheel).split(), TMPDIR=str(disk / "tmp")).wait()
    assert not list(ended.faults(4))
    assert names_full_disk(ended, disk), ended.stderr


def test_full_disk_error_names_wheel_download_directory(workspace: Workspace, disk: Path) -> None:
    """pip downloads the wheel from a directory."""
    with zipfile.ZipFile(workspace.sources / "sglang-9.9.9-py3-none-any.whl", "w") as archive:
        archive.writestr("sglang/srt/large.py", os.urandom(8 << 20))
        archive.writestr("sglang-9.9.9.dist-info/METADATA", "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.9\n")
        archive.writestr("sglang-9.9.9.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    fill(disk, left=4 << 20)
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(workspace.sources)}
    ended = workspace.start("add", "engine", "9.9.9", "--flags-only", **index).wait()
    assert not list(ended.faults(4))
    assert names_full_disk(ended, disk), ended.stderr
    assert "DEPLOY_HOME" in ended.stderr
