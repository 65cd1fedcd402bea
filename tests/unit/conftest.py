"""Fixtures of the unit tests: no network, no programs, and a home that has only the profiles of the tests."""

import socket
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest
from user_profiles import add_profiles

from orchestrator.core.command_hints import set_invocation


@pytest.fixture(scope="session")
def home_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home that has only the profiles of the tests."""
    return add_profiles(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _use_home_of_tests(home_of_tests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(home_of_tests))


@pytest.fixture(autouse=True)
def _no_sockets_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object, **__: object) -> NoReturn:
        raise AssertionError(
            "a unit test must not open a connection or start a program: it belongs to tests/integration"
        )

    set_invocation(None, (), None)  # forget the command line of the previous test
    monkeypatch.setattr(socket.socket, "connect", reject)
    monkeypatch.setattr(socket.socket, "bind", reject)
    monkeypatch.setattr(subprocess.Popen, "__init__", reject)
