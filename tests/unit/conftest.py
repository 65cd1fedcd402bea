"""Unit tests touch no network and start no program: what tries to, fails."""

import socket
import subprocess
from typing import NoReturn

import pytest

from orchestrator.core.command_hints import set_invocation


@pytest.fixture(autouse=True)
def _no_sockets_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError(
            "a unit test must not open a connection or start a program: it belongs to tests/integration"
        )

    set_invocation(None, (), None)  # a process carries out one command line; here the test before carried out another
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
