"""`deploy` with containers, as a user runs it: real Docker, an image built on a stand-in, real sglang inside once.

Each test takes one server through a part of its life by the command line alone, and looks for what is left behind.
Where the fault is one of the container and not of what it runs, the scripted engine serves in the real one's place.
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
from standin import AITER, PACKAGE, engine_image, packages_of
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.images.client import DockerCli

pytestmark = [pytest.mark.engine, pytest.mark.docker]

NAME = f"boxed-{os.getpid()}"  # every run of the tests sees the containers of the others
LOADS_FOR_EVER = ("--set", "env.SCRIPTED_PAUSE=0,300")


@pytest.fixture(scope="module")
def base(docker_daemon: DockerCli, cpu_environment: Venv) -> str:
    return engine_image(packages_of(cpu_environment.python), docker=docker_daemon.program)


@pytest.fixture
def deploy(engine_home: Home, tiny_model: Path) -> Iterator[CommandLine]:
    """`deploy`, whose server is taken down after the test, however it ends."""
    assert tiny_model.is_dir()
    command = CommandLine(engine_home)
    yield command
    docker("rm", "--force", f"deploy-{NAME}")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def up(scripted_image: str, port: int) -> list[str]:
    """The command that brings `cpu-tiny` up in a container, with the scripted engine; more words may follow."""
    return [*up_words(scripted_image, port), "--set", "model.questions=null"]


@pytest.fixture
def up_real(base: str, port: int) -> list[str]:
    """The same with real sglang."""
    return up_words(base, port)


def up_words(image: str, port: int) -> list[str]:
    settings = {
        "runtime": "docker",
        "engine.image": image,
        "engine.dockerfile": "sglang-rocm",
        "engine.source_dir": PACKAGE,
        "engine.aiter_dir": str(Path(AITER).parent),
        "server.port": port,
        "timeouts.termination_grace": 5,  # sglang takes 15 s and more to end by itself
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["up", "--profile", "cpu-tiny", "--name", NAME, *words]


def docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


def status(deploy: CommandLine, *words: str) -> dict[str, object]:
    """What `deploy status NAME` says, of a server that is well (exit code 0) or not."""
    asked = deploy.run("status", NAME, "--json", *words)
    assert asked.returncode in {0, 6, 8}, asked.stderr
    [server] = json.loads(asked.stdout)
    assert isinstance(server, dict)
    return server


def is_clean(deploy: CommandLine, port: int) -> None:
    """No container, running or not, and nobody on the port."""
    assert docker("ps", "--all", "--quiet", "--filter", f"label=deploy.name={NAME}").stdout == ""
    assert NAME not in deploy.run("status", "--json").stdout
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def ready_image(deploy: CommandLine, up: list[str]) -> tuple[str, str]:
    """Build the image of `up` as CI does, under a name of its own; that name, and its id."""
    settings, name = up[up.index("--set") :], f"deploy-test/{NAME}:1"
    built = deploy.run("build", "--profile", "cpu-tiny", *settings, "--tag", name, "--json")
    assert built.returncode == 0, built.stderr
    return name, str(json.loads(built.stdout)["image_id"])


def saved_log(deploy: CommandLine) -> str:
    """The log that the last run of the server left on this machine."""
    return max(deploy.home.runs.glob(f"{NAME}/*/server.log")).read_text()


def kill_scheduler() -> None:
    processes = docker("top", f"deploy-{NAME}", "-eo", "pid,args").stdout.splitlines()
    (scheduler,) = [line.split()[0] for line in processes if "sglang::scheduler" in line]
    os.kill(int(scheduler), signal.SIGKILL)


def seen_by_docker() -> tuple[int, str]:
    """How often it has started the server again, and its word for what it does; asked often, at a tenth of `status`."""
    restarts, word = docker(
        "inspect", "--format", "{{.RestartCount}} {{.State.Status}}", f"deploy-{NAME}"
    ).stdout.split()
    return int(restarts), word


def kill_server(*, deaths: int) -> None:
    """Kill the first process of the container, as soon as it has one: between two runs its pid is 0.

    Returns when Docker has noticed so many deaths: it has started the server again, or given it up.
    """
    while not (pid := int(docker("inspect", "--format", "{{.State.Pid}}", f"deploy-{NAME}").stdout)):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: (seen := seen_by_docker())[0] == deaths or seen[1] == "exited")


def test_docker_server_full_lifecycle(deploy: CommandLine, up_real: list[str], port: int) -> None:
    """Up, again, with another plan, asked, its log followed, down."""
    first = deploy.run(*up_real, "--json")
    assert first.returncode == 0, first.stderr
    assert f"deploy logs {NAME}" in first.stderr
    result = json.loads(first.stdout)
    verdicts = {check["name"]: check["verdict"] for check in result["smoke"]["checks"]}
    assert verdicts["prefix cache"] == verdicts["streaming matches"] == verdicts["bad requests rejected"] == "passed"

    shown = status(deploy)
    assert (shown["runtime"], shown["status"], shown["health"]) == ("docker", "running", "healthy")
    assert shown["url"] == result["url"] == f"http://127.0.0.1:{port}"
    assert {"starting", "smoke test"} <= {*dict(shown["startup"])}  # type: ignore[call-overload]
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
    is_clean(deploy, port)


def test_docker_restarts_dead_server_up_to_limit(deploy: CommandLine, up: list[str], port: int) -> None:
    """Its scheduler is killed, then the server itself; its log is followed through all of it."""
    first = deploy.run(*up, "--json")
    assert first.returncode == 0, first.stderr
    url = json.loads(first.stdout)["url"]
    with deploy.running("logs", NAME, "--follow") as following:
        kill_scheduler()
        wait_for(lambda: seen_by_docker()[0] == 1 and healthy(url))
        shown = status(deploy)
        assert (shown["restarts"], shown["health"], shown["detail"]) == (1, "healthy", "restarted 1 of 3 times")
        assert deploy.run("ask", NAME, "Once upon a time", "--tokens", "12").stdout.strip()

        for deaths in range(2, 5):
            wait_for(lambda: healthy(url))
            kill_server(deaths=deaths)
        code, followed, _ = following.wait()
    assert followed.count("The server is fired up and ready to roll") == 4
    assert code == 0
    shown = status(deploy)
    assert (shown["status"], shown["exit_code"], shown["restarts"]) == ("exited", 137, 3)
    assert shown["detail"] == "reached the restart limit (restarted 3 of 3 times), last exit code 137"
    assert deploy.run("smoke", NAME).returncode == 6

    down = deploy.run("down", NAME)
    assert down.returncode == 0, down.stderr
    is_clean(deploy, port)


@pytest.mark.slow
def test_server_dying_during_load_fails_immediately(deploy: CommandLine, up: list[str], port: int) -> None:
    """Docker would start it three times more."""
    failed = deploy.run(*up, "--set", "env.SCRIPTED_BROKEN=1")
    assert failed.returncode == 7, failed.stderr
    assert "Traceback" in failed.stderr.partition("error:")[2], "the server's own last lines are shown"
    assert "Traceback" in saved_log(deploy)
    is_clean(deploy, port)


def test_ctrl_c_while_waiting_leaves_nothing(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up, *LOADS_FOR_EVER) as command:
        command.wait_for("started `")
        code, output = command.end(signal.SIGINT)
    assert code == 130, output
    assert "Traceback" not in output
    is_clean(deploy, port)


@pytest.mark.slow
def test_container_removed_while_waiting_is_reported(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up, *LOADS_FOR_EVER) as command:
        command.wait_for("started `")
        docker("rm", "--force", f"deploy-{NAME}")
        code, _, output = command.wait()
    assert code == 7
    ends = "is gone|exited with code 137|was removed by another program"  # by what of the removal is seen first
    assert re.search(f"error: the server ({ends})", output), output
    is_clean(deploy, port)


def test_server_survives_killed_up_command(deploy: CommandLine, up: list[str], port: int) -> None:
    with deploy.running(*up, *LOADS_FOR_EVER) as command:
        command.wait_for("started `")
        command.send(signal.SIGKILL)
        command.wait()
    assert status(deploy)["status"] == "running"
    assert deploy.run("down", NAME).returncode == 0
    is_clean(deploy, port)


@pytest.mark.slow
def test_unresponsive_docker_daemon_is_reported(deploy: CommandLine, up: list[str]) -> None:
    nowhere = "unix:///no/such.sock"
    refused = deploy.run(*up, "--host", nowhere)
    assert refused.returncode == 4
    assert "error: the Docker daemon at `unix:///no/such.sock` does not answer" in refused.stderr
    for words in (("status",), ("status", NAME), ("down", NAME), ("down", "--all")):
        asked = deploy.run(*words, "--host", nowhere)
        assert asked.returncode == 4
        assert f"cannot query docker: the Docker daemon at `{nowhere}` does not answer" in asked.stderr


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
    """The far machine has a home of its own, where the checkpoint was staged; the image is one that is ready."""
    shutil.copytree(tiny_model, tmp_path / "far/models/tiny")
    ready, image_id = ready_image(deploy, up)
    with ssh_server(tmp_path, deploy_home=tmp_path / "far", monkeypatch=monkeypatch) as url:
        there, image = ("--host", url), ("--image", ready)
        first = deploy.run(*up, *there, *image, "--json")
        assert first.returncode == 0, first.stderr
        assert "building `" not in first.stderr
        assert docker("inspect", "--format", "{{.Config.Image}}", f"deploy-{NAME}").stdout.strip() == image_id
        again = deploy.run(*up, *there, *image)
        assert (again.returncode, "is already up" in again.stderr) == (0, True)
        assert not json.loads(first.stdout)["url"].endswith(f":{port}")  # the far end of a tunnel has another port
        assert status(deploy, *there)["health"] == "healthy"
        assert str(tmp_path / "far/models/tiny") in docker("inspect", f"deploy-{NAME}").stdout
        assert deploy.run("smoke", NAME, *there).returncode == 0
        assert deploy.run("down", NAME, *there).returncode == 0
        assert tunnels() == []
    assert "fired up" in saved_log(deploy)
    docker("image", "rm", ready)
    is_clean(deploy, port)
