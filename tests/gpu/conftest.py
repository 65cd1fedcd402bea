"""Fixtures of the GPU tests: one home for all, so that the checkpoint is made once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_deploy import GpuCommandLine, assert_free, schedulers
from user_profiles import add_profiles


@pytest.fixture(scope="session")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> GpuCommandLine:
    """Return `deploy` with a home that has the profiles of the tests."""
    return GpuCommandLine(add_profiles(Path(os.environ.get("DEPLOY_HOME") or tmp_path_factory.mktemp("home"))))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory for measurements."""
    return Path(os.environ.get("GPU_RESULTS") or tmp_path_factory.mktemp("results"))


@pytest.fixture
def free(deploy: GpuCommandLine) -> Iterator[None]:
    """Assert that no server runs before and after the test."""
    assert_free()
    yield
    if schedulers():  # the test failed
        deploy.run("down", "--all")
    assert_free()
