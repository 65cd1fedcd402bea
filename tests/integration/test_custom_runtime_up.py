"""A new runtime needs one module and one line: `up` starts and verifies its server, other commands find it."""

from pathlib import Path

import pytest
from example_runtime import NAME, register
from ports import free_port
from run_samples import request_of
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.core.paths import Home
from orchestrator.servers.servers import open_servers
from orchestrator.servers.start import plans
from orchestrator.servers.start.up import up
from orchestrator.servers.status import statuses


def deploy(*words: str) -> Result:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done


def test_up_starts_and_verifies_server_of_new_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    register(monkeypatch)
    monkeypatch.setattr(plans, "ensure_checkpoint", lambda *_, **__: None)  # this engine reads no checkpoint
    assert "==> server.sh <==" in deploy("render", "cpu-tiny", "--runtime", NAME).stdout
    home = Home(tmp_path / "home")
    request = request_of(f"runtime={NAME}", f"server.port={free_port()}", "model.questions=null", name="owl")
    result = up(request, home, on_verified=lambda: None)
    with open_servers(home) as servers:
        assert servers.open("owl").unit == result.server.unit
        assert [(name.runtime, name.status) for name in statuses(servers, None, check_health=False)] == [
            (NAME, "running")
        ]
    assert result.smoke.ok
    assert "GET /health" in deploy("logs", "owl").stdout
    assert "`owl` is stopped" in deploy("down", "owl").stderr
    with open_servers(home) as servers:
        assert servers.find() == ()
