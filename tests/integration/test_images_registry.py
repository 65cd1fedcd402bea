"""In a real registry, a deleted tag of a base image is an error and a moved one a warning."""

import io
import tarfile
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.core.errors import BuildError
from orchestrator.images.base import ensure_base, image_id
from orchestrator.images.build import push_image, tag_image
from orchestrator.images.client import DockerCli
from orchestrator.plan.plan import Engine
from orchestrator.planner.planning import load

pytestmark = pytest.mark.docker


@pytest.fixture
def names(docker_daemon: DockerCli, registry: str) -> Iterator[dict[str, str]]:
    """Push images, remove them from the Docker host, and return their digests by repository and tag."""
    contents = {"dated:20260626": "a", "release:v1": "a", "mirror:any": "a", "moved:20260626": "a", "newer:1": "b"}
    pushed = {}
    for name, content in contents.items():
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            file = tarfile.TarInfo("content")
            file.size = len(content)
            tar.addfile(file, io.BytesIO(content.encode()))
        if content not in {contents[known] for known in pushed}:
            docker_daemon.run("import", "-", f"{registry}/made:{content}", stdin=archive.getvalue().decode("latin1"))
        tag_image(docker_daemon, f"{registry}/made:{content}", f"{registry}/{name}")
        pushed[name] = push_image(docker_daemon, f"{registry}/{name}").partition("@")[2]
    remove_images(docker_daemon, registry)
    yield pushed
    remove_images(docker_daemon, registry)


def remove_images(docker: DockerCli, registry: str) -> None:
    listed = docker.run("images", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}", f"{registry}/*").stdout.split()
    docker.run("image", "rm", "--force", *listed)


def delete(registry: str, name: str, digest: str) -> None:
    request = urllib.request.Request(f"http://{registry}/v2/{name}/manifests/{digest}", method="DELETE")
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - the registry is ours
        pass


def engine(image: str, digest: str | None = None) -> Engine:
    return replace(load("mi355x-tp8-july").plan.engine, image=image, image_digest=digest)


def test_deleted_tag_is_an_error(docker_daemon: DockerCli, registry: str, names: dict[str, str]) -> None:
    dated = f"{registry}/dated:20260626"
    delete(registry, "dated", names["dated:20260626"])
    with pytest.raises(BuildError, match="does not exist in its registry") as caught:
        ensure_base(docker_daemon, engine(dated))
    assert "name another image with `--base-image`" in caught.value.hint


def test_moved_tag_warns_and_pinned_digest_is_used(
    docker_daemon: DockerCli, registry: str, names: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    moved, digest = f"{registry}/moved:20260626", names["moved:20260626"]
    docker_daemon.run("pull", f"{registry}/newer:1")
    newer = image_id(docker_daemon, f"{registry}/newer:1")
    tag_image(docker_daemon, f"{registry}/newer:1", moved)
    push_image(docker_daemon, moved)

    base = ensure_base(docker_daemon, engine(moved, digest=digest))

    assert f"the tag `{moved}` has moved since it was pinned" in capsys.readouterr().err
    assert base != newer == ensure_base(docker_daemon, engine(moved))
