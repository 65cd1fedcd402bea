"""A Docker host at the other end of a real ssh connection; the far machine is this one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cpu_server import CpuEngine, free_port
from docker_server import DockerEngine

from orchestrator.errors import HostError
from orchestrator.runtimes.docker import DockerRuntime

pytestmark = [
    pytest.mark.engine,
    pytest.mark.docker,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="needs openssh-server"),
]

HTTP = ("python3", "-m", "http.server", "--bind", "0.0.0.0")


@pytest.fixture
def far_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_engine: CpuEngine) -> Iterator[str]:
    """An ssh server of the test's own, on loopback, with a key of the test's own."""
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "client").write_text(
        f"Host *\nIdentityFile {tmp_path}/user\nIdentitiesOnly yes\nUserKnownHostsFile {tmp_path}/known\n"
    )
    (tmp_path / "server").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        "StrictModes no\nPasswordAuthentication no\nUsePAM no\nPidFile none\n"
        f"SetEnv DEPLOY_HOME={cpu_engine.home.root}\n"
    )
    ssh = tmp_path / "bin/ssh"  # ssh reads its configuration from the home of the account, whatever HOME says
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/client "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", "/tmp")  # the path of a unix socket has to be short
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(tmp_path / "server")], stderr=subprocess.DEVNULL)
    url = f"ssh://127.0.0.1:{port}"
    try:
        while subprocess.run(
            ["ssh", "-p", str(port), "127.0.0.1", "true"], capture_output=True, check=False
        ).returncode:
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()


def tunnels() -> list[str]:
    """The ssh connections that runtimes hold."""
    listed = subprocess.run(["pgrep", "-af", "ssh .*deploy-ssh-"], capture_output=True, text=True, check=False)
    return listed.stdout.splitlines()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_a_far_server_is_used_like_one_that_is_here(docker_engine: DockerEngine, far_host: str) -> None:
    artifacts = docker_engine.artifacts()
    port = artifacts.plan.server.port
    artifacts = docker_engine.artifacts(f"server.port={port}", argv=(*HTTP, str(port)))
    with closing(DockerRuntime(docker_engine.home, far_host)) as runtime:
        server = docker_engine.start("far", artifacts, runtime=runtime)
        assert not server.url.endswith(f":{port}")  # reached through the tunnel, not over a port of that host
        while not answers(server.url):
            assert runtime.state(server.handle).exit_code is None
            time.sleep(0.05)
        assert runtime.find(server.handle.name) == (server.handle,)
        log = "\n".join(runtime.logs(server.handle, follow=False))
        assert '"GET / HTTP/1.1" 200' in log
        runtime.stop(server.handle, grace=1)
        assert runtime.find(server.handle.name) == ()
        assert tunnels()
        docker_engine.started.clear()  # its runtime is closed when the fixture would use it
    assert tunnels() == []


def test_the_tunnel_ends_with_a_command_that_is_killed(docker_engine: DockerEngine, far_host: str) -> None:
    command = (
        "import sys; from pathlib import Path; from orchestrator.paths import Home;"
        "from orchestrator.runtimes.docker import DockerRuntime;"
        "runtime = DockerRuntime(Home(Path(sys.argv[1])), sys.argv[2]); runtime.find();"
        "print('asked', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", command, str(docker_engine.home.root), far_host]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        assert tunnels()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while tunnels():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_host_that_does_not_let_us_in_is_named(docker_engine: DockerEngine, far_host: str) -> None:
    with (
        closing(DockerRuntime(docker_engine.home, far_host.replace("ssh://", "ssh://nobody@"))) as runtime,
        pytest.raises(HostError, match="cannot be reached by ssh") as caught,
    ):
        runtime.find()
    assert "Permission denied" in caught.value.details
    assert tunnels() == []
