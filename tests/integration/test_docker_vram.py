"""The server of a container waits until VRAM is released: the real script with a fake sysfs."""

import subprocess
from pathlib import Path

from orchestrator.runtimes.docker.container import vram_script


def gpu(folder: Path, number: int, used: int, total: int = 288) -> None:
    """Create an amdgpu device in `folder`, as sysfs shows it; sizes in GiB."""
    device = folder / f"card{number}" / "device"
    device.mkdir(parents=True, exist_ok=True)
    (device / "mem_info_vram_total").write_text(f"{total << 30}\n")
    (device / "mem_info_vram_used").write_text(f"{used << 30}\n")


def test_restarted_server_waits_for_vram_release(tmp_path: Path) -> None:
    """Docker restarts a container at once; the driver takes minutes to release the memory."""
    gpu(tmp_path, 0, 2)
    gpu(tmp_path, 1, 200)
    script = vram_script(range(2), drm=str(tmp_path), interval=0)
    argv = ["sh", "-c", script, "sh", "echo", "the server, with 'its' arguments"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "waiting for the VRAM" in process.stdout.readline()
        gpu(tmp_path, 1, 20)
        assert process.stdout.read().splitlines()[-1] == "the server, with 'its' arguments"


def test_vram_of_other_gpus_is_ignored(tmp_path: Path) -> None:
    gpu(tmp_path, 0, 2)
    gpu(tmp_path, 1, 200)
    argv = ["sh", "-c", vram_script(range(1), drm=str(tmp_path)), "sh", "echo", "started"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "started\n"
