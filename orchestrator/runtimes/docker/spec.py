"""Artifacts of a docker plan, and the preparation of their image."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import BuildError, naming_host
from orchestrator.core.secrets import redact_data
from orchestrator.images.build import build_image, existing_image
from orchestrator.images.client import find_docker
from orchestrator.images.patch_drift import startup_patches, unexpected_patches
from orchestrator.plan.placement import replicas_join_no_gateway, replicas_run_on_one_node
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.runtimes.docker.container import render, spec_of
from orchestrator.runtimes.image import engine_in, has_image, image_of

RULES: Final = (has_image, replicas_run_on_one_node, replicas_join_no_gateway)


def rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """Return the command, the container, and the image's build context with the input files of patches.

    A prebuilt image has no build context.
    """
    return render(plan, *image_of(plan, inputs))


def prepare(artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:
    """Build the plan's image on each of its hosts if it is missing there. A prebuilt image needs no build.

    Raises BuildError, PatchError, and BuildError if the images of two ranks have different patches.
    """
    multi_node = bool(host_ref.rank_hosts)
    prepared, *other_ranks = [
        _prepare_on(artifacts, node, str(node.remote) if multi_node else "") for node in host_ref.nodes
    ]
    for host, other_rank in zip(host_ref.rank_hosts, other_ranks, strict=True):
        if (other_rank.artifacts, other_rank.not_needed) != (prepared.artifacts, prepared.not_needed):
            hint = "pin the base image by its digest, or start a prebuilt one with `--image`"
            raise BuildError(f"the image on {host} has other patches than that on {host_ref.remote}", hint=hint)
    if not other_ranks:
        return prepared
    spec = replace(spec_of(prepared.artifacts), rank_hosts=host_ref.rank_hosts, network=host_ref.network)
    return replace(prepared, artifacts=replace(prepared.artifacts, spec=spec))


def _prepare_on(artifacts: Artifacts, host_ref: HostRef, on_host: str) -> PreparedRun:
    """Prepare the image on a host; `on_host` is its URL if it is one of several."""
    with naming_host(on_host):
        docker, ready = find_docker(host_ref.remote), artifacts.plan.prebuilt_image
        built = existing_image(docker, ready) if ready else build_image(docker, artifacts)
    note(f"image {built.tag}{on_host and f' on {on_host}'}, {'built' if built.built else 'found'} with {built.builder}")
    environment = built.config.engine_env if built.config else {}
    records = {
        "image.json": {"tag": built.tag, "id": built.image_id, "environment": redact_data(environment)},
        "patches.json": asdict(built.receipt),
    }
    plan = artifacts.plan
    for text in unexpected_patches(plan, built.receipt):
        warn(text, hint=f"`deploy inspect {built.tag}` lists the patches that the image has")
    if (detected := startup_patches(plan, built.receipt)).ids:
        artifacts = render(plan, artifacts.build, built.tag, detected)
    return PreparedRun(
        artifacts=artifacts,
        records=records,
        not_needed=built.receipt.handled_at_build(plan.patches),
        detected_patches=detected,
        image=built.config,
        engine=engine_in(docker, built.image_id, artifacts),
    )
