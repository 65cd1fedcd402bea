"""Unit tests touch no network and start no program: what tries to, fails."""

import socket
import subprocess
from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def _no_sockets_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError(
            "a unit test must not open a connection or start a program: it belongs to tests/integration"
        )

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
