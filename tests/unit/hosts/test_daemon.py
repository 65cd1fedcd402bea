"""Test the choice of the Docker daemon: image builds and containers must use the same one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts import daemon as module
from orchestrator.hosts.daemon import DEFAULT, docker_endpoint
from orchestrator.images.client import DockerCli
from orchestrator.runtimes.docker.host import DockerHost

REMOTE = "ssh://amd@GPU-Node1"


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the docker context `node` is selected."""

    def run_or_127(argv: Sequence[str], *, timeout: float) -> CompletedProgram:
        assert timeout > 0
        code = 0 if argv[-1] == "node" else 1
        return CompletedProgram(argv=tuple(argv), code=code, stdout="" if code else f"{REMOTE}\n", stderr="")

    monkeypatch.setattr(module, "run_or_127", run_or_127)
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "node"}))
    return {"DOCKER_CONFIG": str(tmp_path)}


def test_docker_endpoint_precedence(contexts: dict[str, str]) -> None:
    assert docker_endpoint(None, {"HOME": "/nowhere"}) == DEFAULT
    assert docker_endpoint(None, contexts) == REMOTE
    assert docker_endpoint(None, {**contexts, "DOCKER_CONTEXT": "default"}) == DEFAULT
    assert docker_endpoint(None, {**contexts, "DOCKER_HOST": "unix:///x"}) == "unix:///x"
    assert docker_endpoint("ssh://other", {**contexts, "DOCKER_HOST": "unix:///x"}) == "ssh://other"


def test_sdk_and_cli_use_same_docker_host(contexts: dict[str, str], tmp_path: Path) -> None:
    """With a selected context, the CLI once built on one host and the SDK started on another."""
    command = DockerCli(program="docker", version="27", builder="buildkit", host=docker_endpoint(None, contexts))
    assert command.env["DOCKER_HOST"] == DockerHost(Home(tmp_path), environ=contexts).url == REMOTE


@pytest.mark.parametrize("config", ["", "[]", "{", '{"currentContext": 1}'])
def test_invalid_docker_configuration_is_ignored(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert docker_endpoint(None, {"DOCKER_CONFIG": str(tmp_path)}) == DEFAULT
