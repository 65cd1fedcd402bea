"""`deploy watch` reports a full disk, keeps running, and restarts the server when space is free again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deployment import Deployments
from server_pids import pids_of
from waits import wait_for
from watching import end, events, wait_for_event, watched

pytestmark = pytest.mark.attack


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of 8 MiB for the length of the block; needs root."""
    folder.mkdir(mode=0o700)
    argv = ["mount", "-t", "tmpfs", "-o", "mode=700,size=8m", "none", str(folder)]
    if subprocess.run(argv, check=False).returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_full_disk_delays_restart_without_ending_watch(deployments: Deployments) -> None:
    deployment = deployments(0)
    runs = deployment.home / "runs"
    with small_disk(runs):
        watch = watched(deployment)
        ballast = runs / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        for pid in pids_of(deployment, "server"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(events(watch)) > 2)
        assert events(watch)[1:] == ["died", "waiting"]
        assert f"cannot write below `{runs / deployment.name}`: No space left on device" in watch.stdout
        ballast.unlink()
        wait_for_event(watch, "restarted")
        assert events(watch)[1:] == ["died", "waiting", "restarted"]
        end(deployment, watch)
