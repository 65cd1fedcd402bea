"""The docker runtime, put together."""

from collections.abc import Iterator
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.core.paths import Home
from orchestrator.host.docker_endpoint import far_machine
from orchestrator.plan.rules import Case
from orchestrator.render.artifacts import Artifacts, ContextFile
from orchestrator.runtimes.base import Runtime, RuntimeKind
from orchestrator.runtimes.docker.checks import daemon, image, image_space
from orchestrator.runtimes.docker.container import docker_run_file
from orchestrator.runtimes.docker.prepare import prepare, rendered


def has_image(case: Case) -> Iterator[Problem]:
    """There is an image to build on."""
    if case.profile.engine.image is None:
        yield Problem("the docker runtime needs `engine.image`", case.place("engine"), "`--set runtime=process`")


def _files(artifacts: Artifacts, name: str) -> tuple[ContextFile, ...]:
    return (docker_run_file(artifacts, name),)


def _open(home: Home, host: str | None) -> Runtime:
    from orchestrator.runtimes.docker.runtime import DockerRuntime  # noqa: PLC0415 - the SDK takes 0.2 s to import

    return DockerRuntime(home, host)


DOCKER: Final = RuntimeKind(
    name="docker",
    contained=True,
    rules=(has_image,),
    checks=(daemon, image),
    spaces=image_space,
    far=far_machine,
    render=rendered,
    files=_files,
    prepare=prepare,
    open=_open,
)
