"""Tests of preflight on this machine: its real /proc and ports, and a GPU tool that prints recorded output."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from host_samples import RECORDED
from plan_samples import plan_of
from ports import free_port

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.hosts.gpus import ALL_SECTIONS, read_gpus
from orchestrator.hosts.host_state import read_host_state
from orchestrator.hosts.ports import port_holder
from orchestrator.hosts.survey import HOST_SECTIONS, local, survey
from orchestrator.runtimes.base import HostRef
from orchestrator.servers.start import host
from orchestrator.servers.start.host import wait_until_released


@pytest.fixture
def deploy(tmp_path: Path) -> CommandLine:
    return CommandLine(Home(tmp_path / "home"))


@pytest.fixture
def listener() -> Iterator[tuple[int, int]]:
    """Start a process that listens on a port; return its pid and the port."""
    port = free_port()
    program = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print('up'); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process.pid, port
        finally:
            process.kill()


def test_survey_matches_local_host(tmp_path: Path) -> None:
    host_state = read_host_state(
        survey(local, {**ALL_SECTIONS, **HOST_SECTIONS}, directories=[str(tmp_path / "not" / "there")])
    )
    assert host_state.cpus_allowed == os.sched_getaffinity(0)
    disk = host_state.disks[str(tmp_path / "not" / "there")]
    assert disk.free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert host_state.shm_free is not None
    assert host_state.memlock is not None


def test_port_holder_is_found_by_socket(listener: tuple[int, int]) -> None:
    pid, port = listener
    holder = port_holder(port)
    assert holder is not None
    assert holder.pid == pid
    assert "socket.create_server" in (holder.command or "")
    assert port_holder(free_port()) is None


def test_ipv6_port_holder_is_found() -> None:
    with socket.create_server(("::1", free_port()), family=socket.AF_INET6) as server:
        holder = port_holder(server.getsockname()[1])
    assert holder is not None
    assert holder.pid == os.getpid()


def test_down_reports_holder_of_unreleased_port(listener: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, port = listener
    plan = plan_of("cpu-tiny", f"server.port={port}")
    monkeypatch.setattr(host, "_PORT_LIMIT", 0.0)
    with pytest.raises(HostError, match=rf"port {port} is still in use by .*\(pid {pid}\)"):
        wait_until_released(plan, HostRef(home=Home(Path())))


def test_host_without_gpus_is_not_ready(deploy: CommandLine) -> None:
    if shutil.which("nvidia-smi") or Path("/dev/kfd").exists():
        pytest.skip("this machine has GPUs")
    done = deploy.run("preflight", "--profile", "mi355x-tp8", "--json")
    assert done.returncode == 4
    report = json.loads(done.stdout)
    assert report["ready"] is False
    assert report["findings"][0]["value"] == "no AMD GPU; found neither `amd-smi` nor `nvidia-smi`"
    assert "is not ready" in done.stderr
    assert "Traceback" not in done.stderr


def test_interpreter_without_engine_fails_preflight(deploy: CommandLine) -> None:
    done = deploy.run("preflight", "--profile", "cpu-tiny", "--set", f"engine.python={sys.executable}", "--json")
    rows = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
    assert (done.returncode, rows["interpreter"]["level"], rows["torch"]["level"]) == (4, "fail", "fail")
    assert rows["interpreter"]["value"] == f"python {platform.python_version()}"


def test_cpu_profile_preflight_fails_only_for_occupied_port(deploy: CommandLine, listener: tuple[int, int]) -> None:
    pid, port = listener
    ready = deploy.run("preflight", "--profile", "cpu-tiny", "--set", f"server.port={free_port()}")
    assert ready.returncode == 0, ready.stderr
    occupied = deploy.run("preflight", "--profile", "cpu-tiny", "--set", f"server.port={port}")
    assert occupied.returncode == 4
    assert f"(pid {pid})" in occupied.stdout
    assert f"`kill {pid}`" in occupied.stdout


@pytest.mark.parametrize("node", ["mi355x-healthy", "mi355x-warnings"])
def test_survey_script_uses_gpu_tool_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    if shutil.which("amd-smi"):
        pytest.skip("this machine has the real tool")
    program = tmp_path / "amd-smi"
    program.write_text(f'#!/bin/sh\ncat "{RECORDED / node}/amd-smi_$1".*\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    inventory = read_gpus("amd")
    assert inventory is not None
    assert (inventory.tool, len(inventory.gpus), inventory.errors) == ("amd-smi", 8, ())
