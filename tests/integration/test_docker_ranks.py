"""Run one server on two ssh hosts: real sglang as ranks, and the scripted engine where a rank fails.

Both hosts are this machine, under two names.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from loopback_ssh import needs_sshd, ssh_server
from ports import free_port
from rocm_image import AITER, PACKAGE, engine_image, packages_of
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.images.client import DockerCli
from orchestrator.servers.watch.recovery import take_snapshot
from orchestrator.servers.watch.snapshot import ServerSnapshot
from orchestrator.servers.watch.watch import LiveBackend

pytestmark = [pytest.mark.engine, pytest.mark.docker, needs_sshd]

NAME = f"wide-{os.getpid()}"
RANK_0, RANK_1 = f"deploy-{NAME}", f"deploy-{NAME}--rank-1"
KEY = "sk-of-the-server-on-two-hosts"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture
def deploy(engine_home: Home, tiny_model: Path) -> Iterator[CommandLine]:
    """Return `deploy`; remove its containers after the test."""
    assert tiny_model.is_dir()
    yield CommandLine(engine_home, {"THE_KEY": KEY})
    docker("rm", "--force", RANK_0, RANK_1)


@pytest.fixture
def hosts(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Return two ssh names of this machine, with a separate home that has the checkpoint."""
    shutil.copytree(tiny_model, tmp_path / "far/models/tiny")
    (folder := tmp_path / "ssh").mkdir()
    with ssh_server(folder, deploy_home=tmp_path / "far", monkeypatch=monkeypatch) as url:
        known_hosts = (folder / "known").read_text()
        (folder / "known").write_text(known_hosts + known_hosts.replace("127.0.0.1", "localhost"))
        yield url, url.replace("127.0.0.1", "localhost")


def up_words(image: str, *more: str) -> list[str]:
    settings = {
        "runtime": "docker",
        "engine.image": image,
        "engine.dockerfile": "sglang-rocm",
        "engine.source_dir": PACKAGE,
        "engine.aiter_dir": str(Path(AITER).parent),
        "layout.tp": 2,
        "layout.nodes": 2,
        "env.SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "server.port": free_port(),
        "server.api_key_env": "THE_KEY",
        "timeouts.termination_grace": 20,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["up", "cpu-tiny", "--name", NAME, *words, *more]


def status(deploy: CommandLine, host: str) -> dict[str, Any]:
    [server] = json.loads(deploy.run("status", NAME, "--host", host, "--json").stdout)
    assert isinstance(server, dict)
    return server


def scheduler_pid(container: str) -> int:
    listed = docker("top", container, "-eo", "pid,args").splitlines()
    (pid,) = [line.split()[0] for line in listed if "sglang::scheduler" in line]
    return int(pid)


@pytest.mark.slow
def test_two_host_server_lifecycle_with_hung_and_killed_rank(
    deploy: CommandLine, hosts: tuple[str, str], docker_daemon: DockerCli, cpu_environment: Venv
) -> None:
    first, second = hosts
    both = ["--host", first, "--host", second]
    image = engine_image(packages_of(cpu_environment.python), docker=docker_daemon.program)

    started = deploy.run(*up_words(image), *both)
    assert started.returncode == 0, started.stderr
    assert f"the other ranks reach {first} at 127.0.0.1" in started.stderr
    assert docker("inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", RANK_1) == "no"
    report = status(deploy, first)
    assert report["health"] == "healthy"
    assert deploy.run("smoke", NAME, "--host", first).returncode == 0
    with deploy.running("top", NAME, "--host", first, "--json") as top:
        assert json.loads(top.line())["activity"]
    assert "passed" in deploy.run("history", NAME).stdout
    logged = deploy.run("logs", NAME, "--host", first).stdout
    assert "==> server.log <==" in logged
    assert "==> rank-1/server.log <==" in logged
    assert KEY not in logged + docker("inspect", RANK_0, RANK_1)

    # Rank 1 hangs.
    os.kill(scheduler_pid(RANK_1), signal.SIGSTOP)
    wait_for(lambda: status(deploy, first)["health"] == "unhealthy")
    assert f"rank 1 on {second}: a process is stopped (SIGSTOP): sglang::scheduler" in status(deploy, first)["detail"]
    os.kill(scheduler_pid(RANK_1), signal.SIGCONT)
    wait_for(lambda: status(deploy, first)["health"] == "healthy")

    # Rank 1 is killed: the server ends, and the status names the rank.
    docker("kill", RANK_1)
    wait_for(lambda: status(deploy, first)["status"] == "exited")
    assert f"rank 1 on {second} exited first: killed by SIGKILL" in status(deploy, first)["detail"]
    down = deploy.run("down", NAME, "--host", first)
    assert down.returncode == 0, down.stderr
    assert has_no_containers()
    assert "NoneType" not in deploy.run("diagnose", NAME).stdout


NEVER_READY = ("--set", "env.SCRIPTED_PAUSE=0,300")


@pytest.fixture
def up_ready(scripted_image: str) -> list[str]:
    """Return the command that starts the scripted engine as both ranks."""
    return up_words(scripted_image, "--set", "model.questions=null")


@pytest.fixture
def up_loading(up_ready: list[str]) -> list[str]:
    """Return the same command with an engine that never finishes loading."""
    return [*up_ready, *NEVER_READY]


def has_no_containers() -> bool:
    return docker("ps", "--all", "--quiet", "--filter", f"name={NAME}") == ""


def test_watch_restarts_dead_remote_rank_and_rollback_works(
    deploy: CommandLine, hosts: tuple[str, str], up_ready: list[str]
) -> None:
    first, second = hosts
    both = ("--host", first, "--host", second)
    started = deploy.run(*up_ready, *both)
    assert started.returncode == 0, started.stderr
    run = Path(status(deploy, first)["run_dir"])
    assert_watcher_reconnects(deploy.home, first)
    with deploy.running("watch", NAME, "--json") as watch:
        assert json.loads(watch.line())["event"] == "watching"
        docker("kill", RANK_1)  # rank 0 still runs
        report = status(deploy, first)
        assert (report["status"], report["detail"]) == ("exited", f"rank 1 on {second} exited first: killed by SIGKILL")
        docker("kill", RANK_0)  # sglang's rank 0 would end by itself
        while (event := json.loads(watch.line()))["event"] == "unhealthy":
            pass
        assert (event["event"], f"rank 1 on {second} exited first: " in event["detail"]) == ("died", True), event
        assert json.loads(watch.line())["event"] == "restarted"
        assert watch.end(signal.SIGINT)[0] == 130
    assert (run / "rank-1/server.log").is_file()
    failed = deploy.run(*up_ready, *both, "--set", "env.SCRIPTED_BROKEN=1", "--replace")
    assert failed.returncode == 7, failed.stderr
    assert has_no_containers()
    back = deploy.run("rollback", NAME)
    assert back.returncode == 0, back.stderr
    assert status(deploy, first)["health"] == "healthy"
    assert deploy.run("down", NAME, "--host", first).returncode == 0
    assert has_no_containers()


def assert_watcher_reconnects(home: Home, host: str) -> None:
    """Check that the watcher opens a new ssh connection for the next snapshot after its first one ended."""
    backend, before = LiveBackend(), take_snapshot(home, NAME)
    assert isinstance(before, ServerSnapshot), before
    assert before.host == host
    wait_for(lambda: backend.listens(before))
    [forward] = backend._forwards[NAME].of.values()
    forward._program.end(signal.SIGKILL)
    assert not backend.listens(before)
    after = replace(before, run=before.run)
    wait_for(lambda: backend.listens(after))
    backend.close()


def test_ctrl_c_leaves_no_containers_on_any_host(
    deploy: CommandLine, hosts: tuple[str, str], up_loading: list[str]
) -> None:
    with deploy.running(*up_loading, "--host", hosts[0], "--host", hosts[1]) as command:
        command.wait_for("started `")
        assert docker("ps", "--quiet", "--filter", f"name={NAME}").count("\n") == 1
        code, output = command.end(signal.SIGINT)
    assert code == 130, output
    assert "Traceback" not in output
    assert has_no_containers()


def test_failed_rank_is_reported_and_cleaned_up(
    deploy: CommandLine, hosts: tuple[str, str], up_loading: list[str], scripted_image: str
) -> None:
    both = ("--host", hosts[0], "--host", hosts[1])
    docker("create", "--name", RANK_1, scripted_image, "true")  # of another user
    rejected = deploy.run(*up_loading, *both)
    assert rejected.returncode != 0
    assert f"error: container `{RANK_1}` exists (on {hosts[1]})" in rejected.stderr
    assert f"`docker --host {hosts[1]} rm --force {RANK_1}` removes it" in rejected.stderr
    docker("rm", RANK_1)
    assert has_no_containers()
    with deploy.running(*up_loading, *both) as command:
        command.wait_for("started `")
        docker("kill", RANK_1)
        code, _, output = command.wait()
    assert code == 7
    assert f"rank 1 on {hosts[1]} exited first: killed by SIGKILL" in output
    assert has_no_containers()


def test_leftover_rank_of_killed_start_is_replaced(
    deploy: CommandLine, hosts: tuple[str, str], up_loading: list[str]
) -> None:
    both = ("--host", hosts[0], "--host", hosts[1])
    with deploy.running(*up_loading, *both) as command:
        command.wait_for("started `")
        command.end(signal.SIGKILL)
    docker("rm", "--force", RANK_0)
    old_id = docker("inspect", "--format", "{{.Id}}", RANK_1)
    assert old_id
    with deploy.running(*up_loading, *both) as command:
        command.wait_for("started `")
        assert docker("inspect", "--format", "{{.Id}}", RANK_1) != old_id
        assert command.end(signal.SIGINT)[0] == 130
    assert has_no_containers()
