"""One home for all tests on GPUs, so that the checkpoint is made once; servers that a test leaves are taken down."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from line import Line, assert_free, schedulers
from own_profiles import add_profiles


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """`deploy` with its home, which has the profiles of the tests."""
    return Line(add_profiles(Path(os.environ.get("DEPLOY_HOME") or tmp_path_factory.mktemp("home"))))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where measurements are put, one folder each."""
    return Path(os.environ.get("GPU_RESULTS") or tmp_path_factory.mktemp("results"))


@pytest.fixture
def free(line: Line) -> Iterator[None]:
    """Nothing runs before the test, and afterwards no process and no memory of a server is left."""
    assert_free()
    yield
    if schedulers():  # of a test that failed on its way
        line.run("down", "--all")
    assert_free()
