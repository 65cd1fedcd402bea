"""Run replicas of the scripted engine and the real gateway as Docker containers."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import CommandLine
from pip_image import with_pip
from ports import free_port
from rocm_image import AITER, PACKAGE
from waits import TIMEOUT, wait_for

from orchestrator.core.paths import Home
from orchestrator.images.client import DockerCli
from orchestrator.verify.gateway import count_workers

pytestmark = [pytest.mark.engine, pytest.mark.docker, pytest.mark.slow]

NAME = f"replicated-{os.getpid()}"
KEY = "sk-of-several-containers"
CONTAINERS = [f"deploy-{NAME}", f"deploy-{NAME}--replica-1", f"deploy-{NAME}--replica-2"]


@pytest.fixture(scope="module")
def base(docker_daemon: DockerCli, scripted_image: str) -> str:
    return with_pip(scripted_image, docker=docker_daemon.program)


@pytest.fixture
def deploy(engine_home: Home, tiny_model: Path) -> Iterator[CommandLine]:
    assert tiny_model.is_dir()
    yield CommandLine(engine_home, {"PAIR_KEY": KEY})
    docker("rm", "--force", *CONTAINERS)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def up(base: str, port: int) -> list[str]:
    settings = {
        "runtime": "docker",
        "replicas": 2,
        "engine.image": base,
        "engine.dockerfile": "sglang-rocm",
        "engine.source_dir": PACKAGE,
        "engine.aiter_dir": str(Path(AITER).parent),
        "server.port": port,
        "server.api_key_env": "PAIR_KEY",
        "timeouts.termination_grace": 0,
        "model.questions": "null",
        "env.SCRIPTED_PAUSE": 1,  # a start takes 6 s, so that the gateway notices a missing replica
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["up", "--profile", "cpu-tiny", "--name", NAME, *words]


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False).stdout


def containers() -> list[str]:
    return sorted(docker("ps", "--all", "--filter", f"label=deploy.name={NAME}", "--format", "{{.Names}}").split())


def test_replicated_containers_full_lifecycle(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up) as command:
        command.wait_for("started replica 2")
        assert command.end(signal.SIGINT)[0] == 130
    assert containers() == []

    first = deploy.run(*up, "--json")
    assert first.returncode == 0, first.stderr
    result, url = json.loads(first.stdout), f"http://127.0.0.1:{port}"
    assert (result["smoke"]["ok"], result["url"]) == (True, url)
    verdicts = {check["name"]: check["verdict"] for check in result["smoke"]["checks"]}
    for name in ("replica 1: prefix cache", "replica 2: API key required", "gateway: replicas registered"):
        assert verdicts[name] == "passed"
    assert containers() == CONTAINERS
    assert KEY not in docker("inspect", *CONTAINERS)
    published = [
        line.rpartition(":")[0] for name in CONTAINERS[1:] for line in docker("port", name).split() if ":" in line
    ]
    assert published == ["127.0.0.1", "127.0.0.1"]
    [shown] = json.loads(deploy.run("status", NAME, "--json").stdout)
    assert (shown["url"], shown["health"]) == (url, "healthy")
    assert deploy.run("ask", NAME, "Once upon a time", "--tokens", "4").stdout.strip()
    log = deploy.run("logs", NAME).stdout
    assert all(f"==> {name} <==" in log for name in ("server.log", "replica-1/server.log", "replica-2/server.log"))

    again = deploy.run(*up)
    assert (again.returncode, "is already up" in again.stderr) == (0, True), again.stderr
    other = deploy.run(*up, "--set", "gateway.policy=random")
    assert (other.returncode, "`deploy down " in other.stderr) == (6, True), other.stderr

    os.kill(int(docker("inspect", "--format", "{{.State.Pid}}", CONTAINERS[2])), signal.SIGKILL)
    wait_for(lambda: count_workers(url) == 1)
    answer = httpx.post(
        f"{url}/v1/completions",
        json={"model": "tiny", "prompt": "one still serves", "max_tokens": 4},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=TIMEOUT,
        trust_env=False,
    )
    assert answer.status_code == 200
    wait_for(lambda: count_workers(url) == 2)
    assert deploy.run("status", NAME).returncode == 0

    down = deploy.run("down", NAME)
    assert down.returncode == 0, down.stderr
    assert containers() == []
    run = max((deploy.home.runs / NAME).glob("*-*"))
    assert all(Path(run, folder, "server.log").stat().st_size for folder in (".", "replica-1", "replica-2"))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_occupied_gateway_port_prevents_start(deploy: CommandLine, up: list[str], port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        rejected = deploy.run(*up)
    assert (rejected.returncode, f"port {port}" in rejected.stderr) == (4, True), rejected.stderr
    assert containers() == []
