"""`Servers.open`: the plan, run, key, units and clients of a server, or an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_samples import plan_of
from run_samples import past_run

from orchestrator.core.errors import StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.engine import client
from orchestrator.plan.units import Role
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.servers import servers as servers_module
from orchestrator.servers.group import Server
from orchestrator.servers.servers import Servers, resolve_server_name

KEY = "k" * 32


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def servers(home: Home) -> Servers:
    return Servers(home, {"process": ProcessRuntime(home)})


def test_opened_server_has_plan_units_key_and_clients(
    home: Home, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[tuple[str, str]] = []
    run = past_run(home, 1, "server.api_key_env=OWL_KEY", running=True)
    server = servers.open("owl")
    assert (server.run, server.require_plan().digest[:8], server.model) == (run, run.digest, "tiny")
    assert [(unit.name, unit.state.status) for unit in server.units] == [("owl", Status.RUNNING)]
    assert server.require_running().status is Status.RUNNING
    with pytest.raises(UsageError, match="`OWL_KEY` is not set"):
        _ = server.key
    monkeypatch.setenv("OWL_KEY", KEY)

    def record_client(url: str, *, key: Secret, **_: object) -> None:
        clients.append((url, key.reveal()))

    monkeypatch.setattr(client, "EngineClient", record_client)
    for engine in server.engines:
        engine.client()
    server.client()
    assert clients == [(server.url, KEY)] * 2


def test_exited_server_is_rejected_with_restart_hint(home: Home, servers: Servers) -> None:
    run = past_run(home, 1, running=True)
    server = servers.open("owl")
    (run.path / "process.json").unlink()
    with pytest.raises(StartError, match="`owl` is not running") as caught:
        server.require_running()
    assert "`deploy restart owl`" in caught.value.hint


def test_run_of_another_home_is_ignored(home: Home, servers: Servers, tmp_path: Path) -> None:
    """A label, for example, may name any directory."""
    past_run(home, 1, running=True)
    other_run = past_run(Home(tmp_path / "other"), 1)
    server = replace(servers.open("owl"), run_dir=str(other_run.path))
    assert servers.run_of(server) is None
    with pytest.raises(StartError, match="is not in this home"):
        servers.require_run(server)


def test_gateway_url_resolves_to_server_name(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """No runtime is queried if this home has no roles, or if options decide the owner of the URL."""
    queries: list[str] = []
    unit: dict[str, Any] = {
        "runtime": "process",
        "profile": "cpu-tiny-1p1d",
        "plan_digest": "",
        "run_dir": "/runs/a",
        "runtime_id": "1",
        "backend": None,
    }
    role = Server(name="owl", url="http://127.0.0.1:30001", role=Role.PREFILL, **unit)
    pair = Server(name="owl", url="http://127.0.0.1:30000", replicas=(role,), **unit)
    single = Server(name="hawk", url="http://127.0.0.1:30010", **unit)

    @contextmanager
    def opened(_home: Home) -> Iterator[SimpleNamespace]:
        queries.append("runtimes")
        yield SimpleNamespace(find=lambda: (single, pair))

    monkeypatch.setattr(servers_module, "open_servers", opened)
    past_run(home, 1, running=True)
    assert resolve_server_name(pair.url, home) == pair.url
    plan = plan_of("cpu-tiny-1p1d")
    (open_run(home, "pair", plan).path / "plan.json").write_text(plan.to_json())
    assert resolve_server_name(pair.url, home, None, "SGLANG_KEY") == pair.url
    assert resolve_server_name("owl", home) == "owl"
    assert queries == []

    for url in (pair.url, f"{pair.url}/", f"{pair.url}/v1", "http://localhost:30000/v1/"):
        assert resolve_server_name(url, home, None, False) == "owl"
    for url in (single.url, role.url, "http://127.0.0.1:1"):
        assert resolve_server_name(url, home) == url
