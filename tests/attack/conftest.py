"""What every attack needs: a process that commands are forked from, homes of its own, and a row in the last table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployments
from forked import Forks
from rounds import outcomes


@pytest.fixture
def deployments(forks: Forks, tmp_path: Path) -> Iterator[Deployments]:
    made = Deployments(forks, tmp_path, [])
    yield made
    for deployment in made.made:
        deployment.end()


@pytest.fixture(autouse=True)
def in_the_table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send the outcome with the test's report, which comes from another process where several share the work."""
    yield
    while outcomes:
        request.node.user_properties.append(("attack", outcomes.pop().row))
