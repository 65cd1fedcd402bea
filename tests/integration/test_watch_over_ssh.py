"""Tests how `deploy watch` reaches a server of a remote host, over a real ssh connection to this machine."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine_api import EngineApi
from engine_process import Server
from loopback_ssh import needs_sshd, ssh_server, tunnels
from ports import free_port
from waits import wait_for
from watched_world import HEALTHY

from orchestrator.engine.responses import NoResponseError
from orchestrator.servers.watch.snapshot import ServerSnapshot
from orchestrator.servers.watch.watch import LiveBackend

pytestmark = needs_sshd
KEY = "sk-watch-over-ssh"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OWL_KEY", KEY)
    with ssh_server(tmp_path, deploy_home=tmp_path / "home", monkeypatch=monkeypatch) as url:
        yield url


@pytest.fixture
def backend() -> Iterator[LiveBackend]:
    backend = LiveBackend()
    yield backend
    backend.close()


@pytest.fixture
def server(host: str) -> Iterator[ServerSnapshot]:
    with Server(("127.0.0.1", 0), EngineApi(key=KEY), 0.0) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{api.server_address[1]}"
        yield replace(HEALTHY, host=host, url=url, api_key_env="OWL_KEY")
        api.shutdown()


def test_server_answers_and_ssh_ends_with_watch(backend: LiveBackend, server: ServerSnapshot) -> None:
    wait_for(lambda: backend.listens(server))
    assert backend._client(server).probe_rank(0, timeout=60) == 200
    assert len(tunnels()) == 1
    backend.close()
    assert tunnels() == []
    assert not backend.listens(server)


def test_no_request_is_sent_before_ssh_connects(backend: LiveBackend, server: ServerSnapshot) -> None:
    """Another program listens on this host, on the port that the server uses on the remote host."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        url, closed_port = f"http://127.0.0.1:{other.getsockname()[1]}", free_port()
        unreachable = replace(server, url=url, host=f"ssh://127.0.0.1:{closed_port}")
        client = backend._client(unreachable)
        wait_for(lambda: tunnels() == [])
        message = rf"^ssh to `127.0.0.1` .*: .* port {closed_port}: Connection refused$"
        with pytest.raises(NoResponseError, match=message):
            client.probe_rank(0, timeout=60)
        assert not client.accepts_connections()
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_snapshot_closes_unused_ssh_connection(backend: LiveBackend, server: ServerSnapshot) -> None:
    wait_for(lambda: backend.listens(server))
    [before] = tunnels()
    again, moved, local = (replace(server, **changes) for changes in ({}, {"url": "http://127.0.0.1:9"}, {"host": ""}))
    backend._client(again)
    assert tunnels() == [before], "the connection is still needed"
    backend._client(moved)
    [after] = tunnels()
    assert after != before
    backend._client(local)
    assert tunnels() == []


def test_port_forward_does_not_use_shared_connection(
    tmp_path: Path, backend: LiveBackend, server: ServerSnapshot
) -> None:
    """A shared connection of the user's ssh would keep the forward open."""
    with (tmp_path / "client").open("a") as settings:
        settings.write(f"ControlMaster auto\nControlPath {tmp_path}/shared\n")
    wait_for(lambda: backend.listens(server))
    assert not (tmp_path / "shared").exists()
