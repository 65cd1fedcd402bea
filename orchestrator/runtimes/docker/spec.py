"""The docker runtime, put together."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from orchestrator.core.console import note, warn
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact_data
from orchestrator.hosts.daemon import far_machine
from orchestrator.images.build import build_image, found_image
from orchestrator.images.client import find_docker
from orchestrator.images.patch_drift import differences, found_at_start
from orchestrator.plan.plan import Plan
from orchestrator.plan.rules import replicas_share_the_node
from orchestrator.render.artifacts import Artifacts, ContextFile
from orchestrator.runtimes.base import Cache, Place, Prepared, RuntimeKind
from orchestrator.runtimes.docker.checks import daemon, image, image_space
from orchestrator.runtimes.docker.container import docker_run_files, render
from orchestrator.runtimes.image import engine_in, has_image, image_of


def rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """The command, the container, and the image's build context with the files that patches are given.

    An image that is there already has no context.
    """
    return render(plan, *image_of(plan, inputs))


def prepare(artifacts: Artifacts, place: Place) -> Prepared:
    """Build the plan's image where there is none, on the machine it is to run on; a ready one is there already.

    Raises BuildError, PatchError.
    """
    docker, ready = find_docker(place.far), artifacts.plan.ready_image
    built = found_image(docker, ready) if ready else build_image(docker, artifacts)
    note(f"image {built.tag}, {'built' if built.built else 'found'} with {built.builder}")
    environment = built.config.engine_env if built.config else {}
    records = {
        "image.json": {"tag": built.tag, "id": built.image_id, "environment": redact_data(environment)},
        "patches.json": asdict(built.receipt),
    }
    plan = artifacts.plan
    for text in differences(plan, built.receipt):
        warn(text, hint=f"`deploy inspect {built.tag}` shows what was found")
    if (found := found_at_start(plan, built.receipt)).ids:
        artifacts = render(plan, artifacts.build, built.tag, found)
    return Prepared(
        artifacts=artifacts,
        records=records,
        not_needed=built.receipt.not_at_start(plan.patches),
        found=found,
        image=built.config,
        engine=engine_in(docker, built.image_id, artifacts),
    )


def _files(artifacts: Artifacts, name: str) -> tuple[ContextFile, ...]:
    return (*docker_run_files(artifacts, name),)


def _no_tables(_: Plan, __: Home) -> tuple[Path, ...]:
    return ()


def _caches(home: Home, host: str | None) -> tuple[Cache, ...]:
    from orchestrator.runtimes.docker.caches import caches  # noqa: PLC0415 - the SDK takes 0.2 s to import

    return caches(home, host)


DOCKER: Final = RuntimeKind(
    name="docker",
    contained=True,
    rules=(has_image, replicas_share_the_node),
    checks=(daemon, image),
    spaces=image_space,
    far=far_machine,
    render=rendered,
    files=_files,
    prepare=prepare,
    tables=_no_tables,
    caches=_caches,
    leaves=frozenset({"docker-run.sh"}),
)
