"""The host of a start: its running servers, the required disk space, and remote hosts."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.hosts.context import HostAccess
from orchestrator.runtimes.base import HostRef, Runtime, ServerState, Status, Unit
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.host import _server_on, preflight_host, resolve_host_ref


def test_running_server_is_identified_by_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Unit(
        runtime="process",
        name="owl",
        profile="cpu-tiny",
        plan_digest="d1",
        url="http://127.0.0.1:30010",
        run_dir=str(tmp_path),
        runtime_id="1",
    )
    status = Status.RUNNING
    runtime = SimpleNamespace(find=lambda _: (replace(handle, state=ServerState(status=status)),))
    servers = Servers(Home(tmp_path), {"process": cast("Runtime", runtime)})
    monkeypatch.setattr("orchestrator.servers.start.host.open_servers", lambda *_: nullcontext(servers))
    host_ref = HostRef(home=Home(tmp_path))
    assert (_server_on(host_ref, 30010), _server_on(host_ref, 3001)) == ("owl", None)
    status = Status.EXITED
    assert _server_on(host_ref, 30010) is None


def test_required_disk_space_excludes_staged_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new node needs space for the whole checkpoint, a partly staged one only for the rest."""
    monkeypatch.setattr("orchestrator.servers.start.host.preflight", lambda _plan, access, _checks, **_: access)
    plan, home = plan_of("mi355x-tp8", runtime="process"), Home(tmp_path)

    def required_space() -> list[tuple[str, int]]:
        access = cast("HostAccess", preflight_host(plan, HostRef(home=home)))
        return [(space.directory, space.size) for space in access.spaces]

    staged = home.models / plan.model.name
    assert required_space() == [(str(staged), plan.model.weight_bytes)]
    staged.mkdir(parents=True)
    (staged / "model-00001-of-00092.safetensors").write_bytes(b"x" * 4096)
    assert required_space() == [(str(staged), plan.model.weight_bytes - 4096)]


def test_remote_host_comes_from_option_or_docker_host(tmp_path: Path) -> None:
    home, container = Home(tmp_path), plan_of("mi355x-tp8")
    local, remote = {"HOME": str(tmp_path)}, {"HOME": str(tmp_path), "DOCKER_HOST": "ssh://node"}
    assert resolve_host_ref(container.runtime, home, None, local).remote is None
    assert resolve_host_ref(container.runtime, home, None, {"DOCKER_HOST": "unix:///run/docker.sock"}).remote is None
    assert resolve_host_ref(container.runtime, home, None, remote).remote == "ssh://node"
    assert resolve_host_ref(container.runtime, home, "ssh://other", remote).remote == "ssh://other"


@pytest.mark.parametrize("host", ["tcp://node:2375", "ssh://node:abc", "ssh://node:99999", "node"])
def test_invalid_remote_host_is_rejected(tmp_path: Path, host: str) -> None:
    """`up --dry-run --host ssh://node:abc` once printed its steps and exited with 0."""
    with pytest.raises(UsageError, match="is not the URL of a remote host"):
        resolve_host_ref(plan_of("mi355x-tp8").runtime, Home(tmp_path), host, {})


def test_process_runtime_rejects_remote_host(tmp_path: Path) -> None:
    process = plan_of("mi355x-tp8", runtime="process")
    assert resolve_host_ref(process.runtime, Home(tmp_path), None, {"DOCKER_HOST": "ssh://node"}).remote is None
    with pytest.raises(UsageError, match=r"ssh://nowhere\.invalid"):
        resolve_host_ref(process.runtime, Home(tmp_path), "ssh://nowhere.invalid", {})
