"""What every attack needs: a process that commands are forked from, homes of its own, and a table at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployments
from forked import Forks, forking
from rounds import HEADER, SEED, TIMES, outcomes

from orchestrator.core.console import table


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forking(tmp_path_factory.mktemp("forks")) as running:
        yield running


@pytest.fixture
def deployments(forks: Forks, tmp_path: Path) -> Iterator[Deployments]:
    made = Deployments(forks, tmp_path, [])
    yield made
    for deployment in made.made:
        deployment.end()


def pytest_report_header() -> str:
    return f"attack: ATTACK_SEED={SEED} ATTACK={TIMES}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if outcomes:
        terminalreporter.section(f"attack, ATTACK_SEED={SEED}")
        terminalreporter.write_line(table(HEADER, [outcome.row for outcome in outcomes]))
