"""Fixtures of the attacks: deployments, and the rows of the final table."""

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
def report_outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Add the outcomes to the test's report, which xdist sends to the main process."""
    yield
    while outcomes:
        request.node.user_properties.append(("attack", outcomes.pop().row))
