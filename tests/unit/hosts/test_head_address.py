"""Test the parsing of the addresses that a host reports as reached."""

from collections.abc import Sequence

import pytest

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts import head_address
from orchestrator.hosts.head_address import Interface


def test_output_of_login_script_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    output = "Welcome, user!\n192.0.2.9,a,b\n10.0.0.1,10.0.0.2,eth0\n"

    def run(argv: Sequence[str]) -> CompletedProgram:
        return CompletedProgram(argv=tuple(argv), code=0, stdout=output, stderr="")

    monkeypatch.setattr(head_address, "ssh_runner", lambda _host: run)
    reached = head_address._reached("ssh://n1", ["1", "word", "10.0.0.1"])
    assert reached == {"10.0.0.1": Interface("10.0.0.2", "eth0")}
