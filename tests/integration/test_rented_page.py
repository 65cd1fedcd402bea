"""Tests that the commands of docs/how-to/rented-machines.md work in the order of the page.

A fake `sky` runs the lines that the page marks `not run`. The node is this machine, through a sshd on loopback. The
tests use their own profile, publication and port, and the scripted engine instead of GPUs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uv
from command_line import processes_with
from loopback_ssh import needs_sshd, ssh_server
from ports import free_port
from waits import TIMEOUT, wait_for

from orchestrator.core.paths import data_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parents[1] / "support"
PAGE = ROOT / "docs/how-to/rented-machines.md"
MARK = "# not run"
NAME, PORT = "tiny-rented", "30000"
SKYPILOT = [
    *("uv tool install skypilot", "export DEPLOY_API_KEY", "deploy render", "sky launch", "ssh -N -L", "curl"),
    *("ssh mi355x-tp4dp2", "rsync", "sky down"),
]
NEEDS_A_NODE = ("uv tool install skypilot", "sky launch", "sky down", "ssh -N", "dstack apply")


def blocks() -> list[list[str]]:
    """Return the commands of each code block of the page, with their marks."""
    texts = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [re.split(r"\n(?! )", text.strip()) for text in texts]


def test_page_marks_only_commands_that_need_a_node() -> None:
    skypilot, dstack = blocks()
    for command, begins in zip(skypilot, SKYPILOT, strict=True):
        assert command.startswith(begins)
    for command in (*skypilot, *dstack):
        assert (MARK in command) == command.startswith(NEEDS_A_NODE), command


def write_profile(home: Path, port: int) -> None:
    """Write a profile, a workload and a publication of the user, which `render` includes."""
    shipped, profiles = data_root() / "profiles", home / "profiles"
    (profiles / "workloads").mkdir(parents=True)
    (profiles / "published").mkdir()
    profile = (shipped / "cpu-tiny.yaml").read_text().replace("port: 30010", f"port: {port}")
    profile = profile.replace("model: tiny", "model: {use: tiny, questions: null}")
    engine = f"{{use: sglang-0.5.14-cpu, python: {SUPPORT / 'scripted_engine.py'}}}"
    profile = profile.replace("engine: sglang-0.5.14-cpu", f"engine: {engine}")
    (profiles / f"{NAME}.yaml").write_text(profile)
    load = (shipped / "workloads/smoke-tiny.yaml").read_text()
    load = load.replace("request_rates: [1.0, 2.0, 4.0]", "request_rates: [4.0]").replace("requests: 40", "requests: 8")
    (profiles / "workloads/short.yaml").write_text(load)
    values, _, _ = (shipped / "published/wafer-glm52.yaml").read_text().partition("\nreproduce:")
    runs = f"[{{profile: {NAME}, workloads: [short]}}]"
    (profiles / "published/wafer-glm52.yaml").write_text(f"{values}\nreproduce:\n  summary: ours\n  runs: {runs}\n")


def write_programs(programs: Path) -> None:
    programs.mkdir()
    scripts = {
        programs / "sky": f'exec {sys.executable} {SUPPORT}/fake_sky.py "$@"',
        programs / "deploy": f'exec {sys.executable} -P -m orchestrator "$@"',
    }
    for file, line in scripts.items():
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)


def copy_repository(folder: Path) -> None:
    """Copy the tracked files of this repository, which `--package .` copies to the node."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for file in filter(None, tracked.split("\0")):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)


def page_script(local: int, port: int) -> str:
    """Return the first code block of the page with the name and the ports of this test."""
    lines = [command.partition(MARK)[0].strip() for command in blocks()[0] if not command.startswith("uv tool")]
    script = "\n".join(["set -eux", f"trap 'kill %1; sky down {NAME}' EXIT", *lines])
    script = script.replace(f"{PORT}:127.0.0.1:{PORT}", f"{local}:127.0.0.1:{port}").replace(PORT, str(local))
    return script.replace("mi355x-tp4dp2", NAME)


def test_dstack_commands_build_wheel_and_render_service(tmp_path: Path) -> None:
    clone, programs = tmp_path / "clone", tmp_path / "programs"
    copy_repository(clone)
    write_programs(programs)
    lines = [command.partition("#")[0] for command in blocks()[1] if MARK not in command]
    path = f"{programs}:{Path(uv.find_uv_bin()).parent}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "DEPLOY_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        cwd=clone, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (clone / "rent/service.dstack.yml").is_file()


@needs_sshd
def test_page_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, local = free_port(), free_port()
    node, home, programs, ssh = (tmp_path / name for name in ("node", "home", "programs", "ssh"))
    clone = tmp_path / f"clone-{os.getpid()}"  # a folder in /tmp of the node gets the same name
    for folder in (node, ssh):
        folder.mkdir()
    write_profile(home, port)
    write_programs(programs)
    copy_repository(clone)
    with ssh_server(ssh, deploy_home=node / ".local/share/deploy", home=node, monkeypatch=monkeypatch) as url:
        address, number = url.removeprefix("ssh://").split(":")
        with (ssh / "client").open("a") as client:
            client.write(f"Host {NAME}\nHostName {address}\nPort {number}\nHostKeyAlias [{address}]:{number}\n")
        environ = os.environ | {
            "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}", "DEPLOY_HOME": str(home),
            "NODE": str(node), "UV_CACHE_DIR": str(Path.home() / ".cache/uv"),
            "NODE_PATH": f"{Path(uv.find_uv_bin()).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        try:
            done = subprocess.run(
                ["timeout", "450", "bash", "-c", page_script(local, port)],  # also ends its child processes
                cwd=clone, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT,
            )  # fmt: skip
        finally:
            shutil.rmtree(Path("/tmp/deploy-tool", clone.name), ignore_errors=True)
    log = node / "sky.log"
    output = done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert done.returncode == 0, output
    assert '"id":"tiny"' in done.stdout.replace('": "', '":"')
    assert f"`{NAME}` is up" in output
    (comparison,) = json.loads((clone / "results/wafer-glm52/report.json").read_text())["comparisons"]
    assert [row["rate_rps"] for row in comparison["rows"]] == [4.0]
    wait_for(lambda: not processes_with(f"--port {port}"))
