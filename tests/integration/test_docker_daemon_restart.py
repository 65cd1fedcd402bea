"""The Docker daemon restarts under a server, with and without `--live-restore`."""

import subprocess
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from command_line import CommandLine
from docker_server import DockerEngine
from private_daemon import PrivateDaemon, private_daemon, unavailable
from waits import wait_for

from orchestrator.runtimes.base import Status
from orchestrator.runtimes.docker.runtime import DockerRuntime

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.docker,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "available"),
]


@pytest.fixture(scope="module")
def with_image(docker_image: str) -> Iterator[PrivateDaemon]:
    """Return a stopped daemon that has the image."""
    with private_daemon() as daemon:
        copied = f"docker save {docker_image} | docker --host {daemon.url} load"
        assert not subprocess.run(["sh", "-c", copied], capture_output=True, check=False).returncode
        daemon.stop()
        yield daemon


@pytest.fixture
def daemon(request: pytest.FixtureRequest, with_image: PrivateDaemon) -> Iterator[PrivateDaemon]:
    """Run the daemon with the options of the test."""
    with_image.options = request.param
    with_image.start()
    yield with_image
    with_image.end()


def responds(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("daemon", [(), ("--live-restore",)], ids=["default", "live-restore"], indirect=True)
def test_server_is_rediscovered_after_daemon_restart(daemon: PrivateDaemon, docker_engine: DockerEngine) -> None:
    """`logs` ends, `status` and `down` fail while the daemon is down, and afterwards the server responds again."""
    deploy, host_option = CommandLine(docker_engine.home), ("--host", daemon.url)
    port = docker_engine.plan().server.port
    argv = ("python3", "-u", "-m", "http.server", str(port))
    artifacts = docker_engine.artifacts(f"server.port={port}", argv=argv)
    with closing(DockerRuntime(docker_engine.home, daemon.url)) as runtime:
        server = docker_engine.start("restarted", artifacts, runtime=runtime)
        name = server.handle.name
        wait_for(lambda: responds(server.url))
        started = runtime.state(server.handle).started_at

        with deploy.running("logs", name, "--follow", *host_option) as following:
            assert "Serving HTTP" in following.line()
            daemon.stop()
            following.wait()
        for command in ("status", "down"):
            unknown = deploy.run(command, name, *host_option)
            assert unknown.returncode == 4, "the server may still be running"
            assert f"the Docker daemon at `{daemon.url}` does not answer" in unknown.stderr

        daemon.start()
        wait_for(lambda: responds(server.url))
        state = runtime.state(server.handle)
        assert (state.status, state.restarts) == (Status.RUNNING, 0)
        assert (state.started_at == started) == bool(daemon.options), "only --live-restore keeps it running"
        assert deploy.run("down", name, *host_option).returncode == 0
        docker_engine.started.clear()
    assert daemon.docker("ps", "--all", "--quiet").stdout == ""
