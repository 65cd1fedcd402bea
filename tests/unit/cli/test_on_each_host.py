"""The same command on several machines: what each is told to run."""

from collections.abc import Callable, Sequence

import pytest
from typer.testing import CliRunner

from orchestrator.cli import fanout
from orchestrator.cli.fanout import HostResult, Node
from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError

TWO = ("--host", "ssh://one", "--host", "ssh://two")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words that each machine was to run, which does nothing."""
    seen: list[list[str]] = []

    def note(
        each: Sequence[Node], words: Callable[[Node], Sequence[str]], *, at_once: int | None = None
    ) -> tuple[HostResult, ...]:
        assert at_once is None or at_once > 0
        seen.extend([*words(node)] for node in each)
        return tuple(HostResult(node=node, code=0, output="", seconds=0.0) for node in each)

    monkeypatch.setattr(fanout, "run_on_hosts", note)
    return seen


def test_the_name_of_a_server_is_its_own_on_each_machine_and_no_value_of_an_option(told: list[list[str]]) -> None:
    CliRunner().invoke(app, ["smoke", *TWO, "--against", "owl", "owl", "--json"])
    assert told == [
        ["smoke", "--against", "owl", "owl-one", "--json"],
        ["smoke", "--against", "owl", "owl-two", "--json"],
    ]


def test_a_runtime_that_knows_this_machine_alone_is_refused_once(told: list[list[str]]) -> None:
    result = CliRunner().invoke(app, ["up", "cpu-tiny", *TWO])
    assert isinstance(result.exception, UsageError)
    assert "the process runtime runs on this machine, not on `ssh://one`" in result.exception.message
    assert told == []
