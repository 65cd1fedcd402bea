"""A build fills the disk of its Docker host."""

import subprocess
from collections.abc import Iterator

import pytest
from private_daemon import PrivateDaemon, private_daemon, unavailable
from slow_build import with_step

from orchestrator.core.errors import BuildError
from orchestrator.images.build import BuildOptions, ensure_image
from orchestrator.images.client import find_docker
from orchestrator.planner.planning import load
from orchestrator.servers.start.prepare import base_overrides

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "available"),
]


@pytest.fixture
def small_daemon(docker_image: str) -> Iterator[PrivateDaemon]:
    """Run a daemon whose disk has space for the base image and little more."""
    with private_daemon(disk="400m") as daemon:
        copied = f"docker save {docker_image} | docker --host {daemon.url} load"
        assert not subprocess.run(["sh", "-c", copied], capture_output=True, check=False).returncode
        yield daemon


def test_build_on_full_disk_is_reported_and_cleaned_up(small_daemon: PrivateDaemon, docker_image: str) -> None:
    docker = find_docker(small_daemon.url)
    context = with_step("RUN dd if=/dev/zero of=/large bs=1M count=1000", docker_image)
    options = BuildOptions(tag="deploy-test/large:1", no_cache=True, network=None, secrets={})

    with pytest.raises(BuildError) as caught:
        ensure_image(
            docker, load("mi355x-tp8-july", overrides=base_overrides(docker_image)).plan.engine, context, options
        )

    assert "no space left on device" in caught.value.details.lower()
    assert "docker system df" in caught.value.hint
    assert small_daemon.docker("images", "--quiet", "--no-trunc").stdout.split() == [
        small_daemon.docker("inspect", "--format", "{{.Id}}", docker_image).stdout.strip()
    ]
    assert small_daemon.docker("ps", "--all", "--quiet").stdout == ""
