"""Tests of `deploy up` with real Docker, and with an image built on a fake base image.

Each test uses only the command line and checks that nothing is left behind. One test runs real sglang; tests of faults
in the container use the scripted engine.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from cpu_server import healthy
from loopback_ssh import needs_sshd, ssh_server, tunnels
from ports import free_port
from rocm_image import AITER, PACKAGE, engine_image, packages_of
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.images.client import DockerCli

pytestmark = [pytest.mark.engine, pytest.mark.docker]

NAME = f"boxed-{os.getpid()}"  # test runs share the containers of this machine
LOADS_FOREVER = ("--set", "env.SCRIPTED_PAUSE=0,300")


@pytest.fixture(scope="module")
def base(docker_daemon: DockerCli, cpu_environment: Venv) -> str:
    return engine_image(packages_of(cpu_environment.python), docker=docker_daemon.program)


@pytest.fixture
def deploy(engine_home: Home, tiny_model: Path) -> Iterator[CommandLine]:
    """Return `deploy`; remove its container after the test."""
    assert tiny_model.is_dir()
    command = CommandLine(engine_home)
    yield command
    docker("rm", "--force", f"deploy-{NAME}")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def up(scripted_image: str, port: int) -> list[str]:
    """Return the command that starts `cpu-tiny` in a container with the scripted engine."""
    return [*up_words(scripted_image, port), "--set", "model.questions=null"]


@pytest.fixture
def up_real(base: str, port: int) -> list[str]:
    return up_words(base, port)


def up_words(image: str, port: int) -> list[str]:
    settings = {
        "runtime": "docker",
        "engine.image": image,
        "engine.dockerfile": "sglang-rocm",
        "engine.source_dir": PACKAGE,
        "engine.aiter_dir": str(Path(AITER).parent),
        "server.port": port,
        "timeouts.termination_grace": 5,  # sglang needs at least 15 s to exit by itself
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["up", "--profile", "cpu-tiny", "--name", NAME, *words]


def docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


def status(deploy: CommandLine, *words: str) -> dict[str, object]:
    """Return the result of `deploy status NAME`, also for an unhealthy server."""
    result = deploy.run("status", NAME, "--json", *words)
    assert result.returncode in {0, 6, 8}, result.stderr
    [server] = json.loads(result.stdout)
    assert isinstance(server, dict)
    return server


def assert_clean(deploy: CommandLine, port: int) -> None:
    """Assert that the server has no container, not even an exited one, and that nothing listens on its port."""
    assert docker("ps", "--all", "--quiet", "--filter", f"label=deploy.name={NAME}").stdout == ""
    assert NAME not in deploy.run("status", "--json").stdout
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def prebuilt_image(deploy: CommandLine, up: list[str]) -> tuple[str, str]:
    """Build the image of `up` with a tag, as CI does; return name and id."""
    settings, name = up[up.index("--set") :], f"deploy-test/{NAME}:1"
    built = deploy.run("build", "--profile", "cpu-tiny", *settings, "--tag", name, "--json")
    assert built.returncode == 0, built.stderr
    return name, str(json.loads(built.stdout)["image_id"])


def saved_log(deploy: CommandLine) -> str:
    return max(deploy.home.runs.glob(f"{NAME}/*/server.log")).read_text()


def kill_scheduler() -> None:
    processes = docker("top", f"deploy-{NAME}", "-eo", "pid,args").stdout.splitlines()
    (scheduler,) = [line.split()[0] for line in processes if "sglang::scheduler" in line]
    os.kill(int(scheduler), signal.SIGKILL)


def container_state() -> tuple[int, str]:
    """Return how often Docker has restarted the server, and the container's status; ten times faster than `status`."""
    words = ("inspect", "--format", "{{.RestartCount}} {{.State.Status}}", f"deploy-{NAME}")
    restarts, state = docker(*words).stdout.split()
    return int(restarts), state


def kill_server(*, deaths: int) -> None:
    """Kill the first process of the container; its pid is 0 between two starts.

    Return when Docker has restarted the server `deaths` times, or has stopped restarting it.
    """
    while not (pid := int(docker("inspect", "--format", "{{.State.Pid}}", f"deploy-{NAME}").stdout)):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: (state := container_state())[0] == deaths or state[1] == "exited")


def test_docker_server_full_lifecycle(deploy: CommandLine, up_real: list[str], port: int) -> None:
    first = deploy.run(*up_real, "--json")
    assert first.returncode == 0, first.stderr
    assert f"deploy logs {NAME}" in first.stderr
    result = json.loads(first.stdout)
    verdicts = {check["name"]: check["verdict"] for check in result["smoke"]["checks"]}
    assert verdicts["prefix cache"] == verdicts["streaming matches"] == verdicts["bad requests rejected"] == "passed"

    server = status(deploy)
    assert (server["runtime"], server["status"], server["health"]) == ("docker", "running", "healthy")
    assert server["url"] == result["url"] == f"http://127.0.0.1:{port}"
    assert {"starting", "smoke test"} <= {*dict(server["startup"])}  # type: ignore[call-overload]
    assert "The server is fired up and ready to roll" in deploy.run("logs", NAME).stdout
    with deploy.running("logs", NAME, "--follow") as following:
        assert deploy.run("ask", NAME, "Once upon a time", "--tokens", "12").stdout.strip()
        again = deploy.run(*up_real)
        assert (again.returncode, "is already up" in again.stderr) == (0, True)
        other = deploy.run(*up_real, "--set", "flags.max-total-tokens=32768")
        assert other.returncode == 6
        assert "- flags.max-total-tokens: 65536\n+ flags.max-total-tokens: 32768" in other.stderr

        down = deploy.run("down", NAME)
        assert down.returncode == 0, down.stderr
        code, followed, _ = following.wait()
    assert code == 0
    assert "POST /v1/completions" in followed
    assert "Draining requests and shutting down" in saved_log(deploy)
    assert_clean(deploy, port)


def test_docker_restarts_dead_server_up_to_limit(deploy: CommandLine, up: list[str], port: int) -> None:
    first = deploy.run(*up, "--json")
    assert first.returncode == 0, first.stderr
    url = json.loads(first.stdout)["url"]
    with deploy.running("logs", NAME, "--follow") as following:
        kill_scheduler()
        wait_for(lambda: container_state()[0] == 1 and healthy(url))
        server = status(deploy)
        assert (server["restarts"], server["health"], server["detail"]) == (1, "healthy", "restarted 1 of 3 times")
        assert deploy.run("ask", NAME, "Once upon a time", "--tokens", "12").stdout.strip()

        for deaths in range(2, 5):
            wait_for(lambda: healthy(url))
            kill_server(deaths=deaths)
        code, followed, _ = following.wait()
    assert followed.count("The server is fired up and ready to roll") == 4
    assert code == 0
    server = status(deploy)
    assert (server["status"], server["exit_code"], server["restarts"]) == ("exited", 137, 3)
    assert server["detail"] == "reached the restart limit (restarted 3 of 3 times), last exit code 137"
    assert deploy.run("smoke", NAME).returncode == 6

    down = deploy.run("down", NAME)
    assert down.returncode == 0, down.stderr
    assert_clean(deploy, port)


@pytest.mark.slow
def test_server_dying_during_load_fails_immediately(deploy: CommandLine, up: list[str], port: int) -> None:
    """Docker would restart it three times."""
    failed = deploy.run(*up, "--set", "env.SCRIPTED_BROKEN=1")
    assert failed.returncode == 7, failed.stderr
    assert "Traceback" in failed.stderr.partition("error:")[2], "the last lines of the log are missing"
    assert "Traceback" in saved_log(deploy)
    assert_clean(deploy, port)


def test_ctrl_c_while_waiting_leaves_no_container(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up, *LOADS_FOREVER) as command:
        command.wait_for("started `")
        code, output = command.end(signal.SIGINT)
    assert code == 130, output
    assert "Traceback" not in output
    assert_clean(deploy, port)


@pytest.mark.slow
def test_container_removed_while_waiting_is_reported(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up, *LOADS_FOREVER) as command:
        command.wait_for("started `")
        docker("rm", "--force", f"deploy-{NAME}")
        code, _, output = command.wait()
    assert code == 7
    messages = "is gone|exited with code 137|was removed by another program"  # depends on what is noticed first
    assert re.search(f"error: the server ({messages})", output), output
    assert_clean(deploy, port)


def test_server_survives_killed_up_command(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up, *LOADS_FOREVER) as command:
        command.wait_for("started `")
        command.send(signal.SIGKILL)
        command.wait()
    assert status(deploy)["status"] == "running"
    assert deploy.run("down", NAME).returncode == 0
    assert_clean(deploy, port)


@pytest.mark.slow
def test_unresponsive_docker_daemon_is_reported(deploy: CommandLine, up: list[str]) -> None:
    nowhere = "unix:///no/such.sock"
    result = deploy.run(*up, "--host", nowhere)
    assert result.returncode == 4
    assert "error: the Docker daemon at `unix:///no/such.sock` does not answer" in result.stderr
    for words in (("status",), ("status", NAME), ("down", NAME), ("down", "--all")):
        result = deploy.run(*words, "--host", nowhere)
        assert result.returncode == 4
        assert f"cannot query docker: the Docker daemon at `{nowhere}` does not answer" in result.stderr


@pytest.mark.slow
@needs_sshd
def test_remote_docker_server_full_lifecycle(
    deploy: CommandLine,
    up: list[str],
    port: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(tiny_model, tmp_path / "remote/models/tiny")
    image_name, image_id = prebuilt_image(deploy, up)
    with ssh_server(tmp_path, deploy_home=tmp_path / "remote", monkeypatch=monkeypatch) as url:
        on_host, image = ("--host", url), ("--image", image_name)
        first = deploy.run(*up, *on_host, *image, "--json")
        assert first.returncode == 0, first.stderr
        assert "building `" not in first.stderr
        assert docker("inspect", "--format", "{{.Config.Image}}", f"deploy-{NAME}").stdout.strip() == image_id
        again = deploy.run(*up, *on_host, *image)
        assert (again.returncode, "is already up" in again.stderr) == (0, True)
        assert not json.loads(first.stdout)["url"].endswith(f":{port}")  # the local end of the tunnel has another port
        assert status(deploy, *on_host)["health"] == "healthy"
        assert str(tmp_path / "remote/models/tiny") in docker("inspect", f"deploy-{NAME}").stdout
        assert deploy.run("smoke", NAME, *on_host).returncode == 0
        assert deploy.run("down", NAME, *on_host).returncode == 0
        assert tunnels() == []
    assert "fired up" in saved_log(deploy)
    docker("image", "rm", image_name)
    assert_clean(deploy, port)
