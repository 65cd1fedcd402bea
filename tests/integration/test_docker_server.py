"""Run the scripted engine in a container from start to stop, and check that its secrets do not leak."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from cpu_server import CpuServer
from docker_server import DockerEngine

from orchestrator.core.secrets import Secret
from orchestrator.planner.planning import rendered_files
from orchestrator.runs.run_dir import RunDir, read_plan, write_files
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.engine, pytest.mark.docker, pytest.mark.slow]

KEY = "sk-live-0123456789abcdef"
TOKEN = "plain-token-of-the-test"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def scripted(docker_engine: DockerEngine, scripted_image: str) -> DockerEngine:
    return replace(docker_engine, image=scripted_image)


@pytest.fixture
def other(scripted: DockerEngine) -> Iterator[DockerRuntime]:
    """Return a second runtime, as another terminal would use it."""
    with closing(DockerRuntime(scripted.home)) as runtime:
        yield runtime


def test_server_lifecycle_leaks_no_secret_and_saves_log(scripted: DockerEngine, other: DockerRuntime) -> None:
    artifacts = scripted.artifacts("server.api_key_env=DEPLOY_TEST_KEY")
    secrets = {"DEPLOY_TEST_KEY": Secret(KEY), "HF_TOKEN": Secret(TOKEN)}
    server = scripted.start("life", artifacts, secrets=secrets)
    name = server.handle.name

    # Another terminal finds it by its labels.
    assert other.find(name) == (server.handle,)
    assert server.handle in other.find()
    assert server.handle.plan_digest == artifacts.plan.digest

    server.wait_until_ready()
    assert server.complete().status_code == 401
    authorized = {"Authorization": f"Bearer {KEY}"}
    model = httpx.get(f"{server.url}/v1/models", headers=authorized, trust_env=False).json()["data"][0]
    assert model["id"] == artifacts.plan.model.served_name

    # The secrets are in the container and not visible from outside.
    inside = docker("exec", server.handle.runtime_id, "sh", "-c", "cat /run/secrets/*; ls -l /run/secrets")
    assert KEY in inside
    assert TOKEN in inside
    assert inside.count("-rw-------") == 2
    assert TOKEN in docker("exec", server.handle.runtime_id, "sh", "-c", "cat /proc/*/environ | tr '\\0' '\\n'")
    visible = docker("inspect", server.handle.runtime_id) + docker("top", server.handle.runtime_id, "-eo", "pid,args")
    assert KEY not in visible
    assert TOKEN not in visible

    # Only this machine reaches the port; the checkpoint is read-only.
    inspected = json.loads(docker("inspect", server.handle.runtime_id))[0]
    assert [b["HostIp"] for bs in inspected["HostConfig"]["PortBindings"].values() for b in bs] == ["127.0.0.1"]
    assert not inspected["HostConfig"]["Privileged"]
    bound = {"Type": "json-file", "Config": {"max-size": "128m", "max-file": "8"}}
    assert inspected["HostConfig"]["LogConfig"] == bound
    write = ["docker", "exec", server.handle.runtime_id, "touch", "/models/tiny/x"]
    assert b"Read-only" in subprocess.run(write, capture_output=True, check=False).stderr

    # The log remains after the container, without the printed key.
    raw = subprocess.run(["docker", "logs", server.handle.runtime_id], capture_output=True, text=True, check=True)
    assert KEY in raw.stdout + raw.stderr
    assert KEY not in "\n".join(other.logs(server.handle, follow=False))
    other.stop(server.handle, grace=60)
    assert other.state(server.handle).status is Status.NOT_FOUND
    assert other.find(name) == ()
    content = Path(server.handle.run_dir, "server.log").read_text()
    assert "fired up" in content
    assert KEY not in content
    assert list(other.logs(server.handle, follow=True)) == content.splitlines()
    other.stop(server.handle, grace=60)


def test_server_started_by_rendered_script_is_found(
    scripted: DockerEngine, other: DockerRuntime, tmp_path: Path
) -> None:
    """The script is `docker-run.sh` of `deploy render --output DIR`; the plan is read from DIR."""
    artifacts, name, folder = scripted.artifacts(), scripted.name("by-hand"), tmp_path / "rendered"
    write_files(folder, rendered_files(artifacts, name))
    environ = {**os.environ, "DEPLOY_HOME": str(scripted.home.root)}
    subprocess.run([str(folder / "docker-run.sh")], env=environ, check=True, capture_output=True, cwd="/")
    (handle,) = other.find(name)
    scripted.started.append((DockerRuntime(scripted.home), handle))

    assert (handle.run_dir, read_plan(RunDir(folder))) == (str(folder), artifacts.plan)
    server = CpuServer(handle=handle, runtime=other, plan=artifacts.plan)
    server.wait_until_ready()
    assert server.complete().status_code == 200
    other.stop(handle, grace=0)
    assert other.find(name) == ()
    assert not (folder / "server.log").exists(), "a label must not choose the path of the log"
