"""Test that a container for one command is removed if its client fails."""

from collections.abc import Sequence

import pytest

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.images import client
from orchestrator.images.client import DockerCli


@pytest.mark.parametrize("code", [0, 255])
def test_container_is_removed_after_failed_command(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that loses its connection leaves the container running."""
    commands: list[Sequence[str]] = []
    timeouts: list[float | None] = []

    def run(argv: Sequence[str], *, timeout: float | None = None, **_: object) -> CompletedProgram:
        commands.append(argv)
        timeouts.append(timeout)
        return CompletedProgram(argv=tuple(argv), code=code, stdout="", stderr="")

    monkeypatch.setattr(client, "run", run)
    docker = DockerCli(program="docker", version="28.2.2", builder="buildkit", host="unix:///none")

    assert docker.run_inside("image:1", "true").code == code

    first, *cleanup = commands
    name = first[first.index("--name") + 1]
    assert cleanup == ([["docker", "rm", "--force", name]] if code else [])
    assert all(timeouts[1:]), "each removal needs a timeout, as the daemon may be unreachable"
