"""`up --image`: a prebuilt image's receipt before the pull, and its table of tuned kernels."""

from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import BuildError, KernelsError, UsageError
from orchestrator.core.files import write_cache
from orchestrator.core.safe_paths import FileName
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.images.config import ImageConfig
from orchestrator.images.prebuilt import (
    PrebuiltImage,
    find_local,
    inspect_prebuilt,
    pull_prebuilt,
    read_table,
    tag_may_have_moved,
)
from orchestrator.images.receipt import require_receipt
from orchestrator.images.registry import Registry
from orchestrator.kernels.plan_coverage import RowSources, needs_table
from orchestrator.patches.schema import MOE_TABLE
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import base_reference, repository
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef

_REGISTRY: Final = Registry(timeout=5.0)  # request timeout in seconds, short because the plan waits for it


def image_of(plan: Plan) -> str | None:
    """Return the image of a plan's server; None if it runs without an image."""
    if not runtime_class(plan.runtime).in_container or plan.engine.image is None:
        return None
    return plan.prebuilt_image or base_reference(plan.engine)


def require_image(runtime: str) -> None:
    """Raise UsageError if the runtime does not use images."""
    if not runtime_class(runtime).in_container:
        raise UsageError(f"the {runtime} runtime uses no image", hint="`--set runtime=docker`, or no `--image`")


def known_image(image: str, docker: DockerCli | None, *, pulled_by_up: bool = True) -> PrebuiltImage | None:
    """Return an image from its labels on the Docker host or in its registry, without pulling it.

    Prints a note and returns None if neither has it. Raises BuildError for an image without a receipt.
    """
    if docker is not None and (prebuilt := find_local(docker, image)) is not None:
        return prebuilt
    later = "checked against the plan after the pull" if pulled_by_up else "not checked against the plan: nodes pull it"
    try:
        config = _REGISTRY.config(image)
    except BuildError as error:
        note(f"{error.message}; its receipt is {later}")
        return None
    return _labeled(image, config)


def newest_image(image: str, docker: DockerCli) -> PrebuiltImage | None:
    """Return an image like `known_image`, but always resolve its tag in the registry.

    If the registry query fails, pull the image again, because docker may have the necessary login.
    """
    image_config = find_local(docker, image)
    if image_config is None or not tag_may_have_moved(docker, image):
        return image_config or known_image(image, None)
    try:
        config = _REGISTRY.config(image)
    except BuildError:
        return find_local(docker, pull_prebuilt(docker, image))
    return _labeled(image, config)


def _labeled(image: str, config: ImageConfig) -> PrebuiltImage:
    """Return an image from its configuration in the registry."""
    reference = f"{repository(image.partition('@')[0])}@{config.digest}"
    return PrebuiltImage(reference=reference, receipt=require_receipt(config.labels, image), labels=config.labels)


def fetch_image(reference: str, host_ref: HostRef) -> PrebuiltImage:
    """Pull an image and verify its receipt. Raises BuildError, PatchError."""
    docker = find_docker(host_ref.remote)
    return inspect_prebuilt(docker, pull_prebuilt(docker, reference))


def rows_in(image: PrebuiltImage, plan: Plan, host_ref: HostRef, *, allow_untuned: bool) -> RowSources:
    """Return the table of a pulled image, cached by its digest.

    Raises KernelsError if the image lacks a table that the plan needs.
    """
    table = read_table(find_docker(host_ref.remote), image, MOE_TABLE) if needs_table(plan) else None
    if table is None:
        require_table(image, plan, allow_untuned=allow_untuned)
        return RowSources()
    path = host_ref.home.kernels / "images" / FileName(f"{image.inputs[MOE_TABLE][:12]}.csv")
    return RowSources(tables=(write_cache(path, table),))


def require_table(image: PrebuiltImage, plan: Plan, *, allow_untuned: bool) -> None:
    """Raise KernelsError if the image lacks a table that the plan needs, unless `allow_untuned`."""
    if needs_table(plan) and MOE_TABLE not in image.inputs and not allow_untuned:
        raise KernelsError(
            f"`{image.reference}` has no table of tuned kernels",
            location=f"profile {plan.profile}",
            hint="`deploy build PROFILE` builds an image with it; or `--allow-untuned`",
        )
