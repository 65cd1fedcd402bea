"""Use a Docker host over a real ssh connection to this machine."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cpu_server import CpuEngine
from docker_server import DockerEngine
from loopback_ssh import needs_sshd, ssh_server, tunnels
from waits import wait_for

from orchestrator.core.errors import HostError
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.servers.servers import Servers
from orchestrator.servers.targets import side_of_server

pytestmark = [
    pytest.mark.engine,
    pytest.mark.docker,
    needs_sshd,
]

HTTP = ("python3", "-m", "http.server", "--bind", "0.0.0.0")


@pytest.fixture
def remote_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_engine: CpuEngine) -> Iterator[str]:
    """Start an ssh server with the same home."""
    with ssh_server(tmp_path, deploy_home=cpu_engine.home.root, monkeypatch=monkeypatch) as url:
        yield url


def responds(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_remote_server_is_usable_through_tunnel(docker_engine: DockerEngine, remote_host: str) -> None:
    artifacts = docker_engine.artifacts()
    port = artifacts.plan.server.port
    artifacts = docker_engine.artifacts(f"server.port={port}", argv=(*HTTP, str(port)))
    with closing(DockerRuntime(docker_engine.home, remote_host)) as runtime:
        server = docker_engine.start("remote", artifacts, runtime=runtime)
        assert not server.url.endswith(f":{port}")  # reached through the tunnel, not over a port of that host
        assert server.handle.service_url == f"http://127.0.0.1:{port}"  # the URL after the end of this command
        assert server.handle.forward_command.startswith(f"ssh -N -L {port}:127.0.0.1:{port} -p ")
        wait_for(lambda: responds(server.url))
        assert runtime.find(server.handle.name) == (server.handle,)
        RunDir(Path(server.handle.run_dir)).save("plan.json", artifacts.plan.to_dict())
        probed = side_of_server(Servers(docker_engine.home, {"docker": runtime}), server.handle.name)
        assert [target.url for _, target in probed.engines] == [server.url]
        log = "\n".join(runtime.logs(server.handle, follow=False))
        assert '"GET / HTTP/1.1" 200' in log
        runtime.stop(server.handle, grace=1)
        assert runtime.find(server.handle.name) == ()
        assert tunnels()
        docker_engine.started.clear()  # the fixture would use the closed runtime
    assert tunnels() == []


def test_tunnel_ends_when_its_command_is_killed(docker_engine: DockerEngine, remote_host: str) -> None:
    command = (
        "import sys; from pathlib import Path; from orchestrator.core.paths import Home;"
        "from orchestrator.runtimes.docker.runtime import DockerRuntime;"
        "runtime = DockerRuntime(Home(Path(sys.argv[1])), sys.argv[2]); runtime.find();"
        "print('asked', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", command, str(docker_engine.home.root), remote_host]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        assert tunnels()
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: not tunnels())


def test_ssh_permission_denied_is_reported(docker_engine: DockerEngine, remote_host: str) -> None:
    with (
        closing(DockerRuntime(docker_engine.home, remote_host.replace("ssh://", "ssh://nobody@"))) as runtime,
        pytest.raises(HostError, match=r"cannot connect to .* with ssh") as caught,
    ):
        runtime.find()
    assert "Permission denied" in caught.value.details
    assert tunnels() == []
