"""`up --image`: what is known of a prebuilt image before it is fetched, and the table of tuned kernels in it."""

from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import BuildError, KernelsError, UsageError
from orchestrator.core.files import write_cache
from orchestrator.core.safe_paths import FileName, ImageReference, UnsafeValueError
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.images.config import ImageConfig
from orchestrator.images.prebuilt import (
    PrebuiltImage,
    find_local,
    inspect_prebuilt,
    may_move,
    pull_prebuilt,
    read_table,
)
from orchestrator.images.receipt import require_receipt
from orchestrator.images.registry import Registry
from orchestrator.kernels.plan_coverage import RowSources, needs_table
from orchestrator.patches.schema import MOE_TABLE
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import repository
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef

_REGISTRY: Final = Registry(within=5.0)  # seconds that a decision may wait for it


def require_image(runtime: str, image: str) -> None:
    """Raise UsageError for a runtime that starts no image, and for what cannot be the name of one."""
    if not runtime_class(runtime).in_container:
        raise UsageError(f"the {runtime} runtime starts no image", hint="`--set runtime=docker`, or no `--image`")
    require_image_name(image)


def require_image_name(text: str) -> None:
    """Raise UsageError for what cannot be the name of an image."""
    try:
        ImageReference(text)
    except UnsafeValueError as error:
        raise UsageError(str(error)) from error


def known_image(image: str, docker: DockerCli | None, *, pulled_here: bool = True) -> PrebuiltImage | None:
    """What is known of an image without pulling it: by its labels on the docker host, else by those in its registry.

    None, with a note, where neither can tell. Raises BuildError for an image without a receipt.
    """
    if docker is not None and (found := find_local(docker, image)) is not None:
        return found
    later = "held against the plan once it is pulled" if pulled_here else "not held against the plan: nodes pull it"
    try:
        config = _REGISTRY.config(image)
    except BuildError as error:
        note(f"{error.message}; its receipt is {later}")
        return None
    return _labeled(image, config)


def newest_image(image: str, docker: DockerCli) -> PrebuiltImage | None:
    """As `known_image`, but what a tag means is asked of its registry each time.

    A registry that does not answer may want a login, which docker has: what is on the docker host is pulled anew.
    """
    here = find_local(docker, image)
    if here is None or not may_move(docker, image):
        return here or known_image(image, None)
    try:
        config = _REGISTRY.config(image)
    except BuildError:
        return find_local(docker, pull_prebuilt(docker, image))
    return _labeled(image, config)


def _labeled(image: str, config: ImageConfig) -> PrebuiltImage:
    """An image by what its registry says of it, a few kilobytes."""
    reference = f"{repository(image.partition('@')[0])}@{config.digest}"
    return PrebuiltImage(reference=reference, receipt=require_receipt(config.labels, image), labels=config.labels)


def fetch_image(reference: str, place: HostRef) -> PrebuiltImage:
    """Fetch an image and prove its receipt. Raises BuildError, PatchError."""
    docker = find_docker(place.remote)
    return inspect_prebuilt(docker, pull_prebuilt(docker, reference))


def rows_in(image: PrebuiltImage, plan: Plan, place: HostRef, *, allow_untuned: bool) -> RowSources:
    """The table in a fetched image, kept by its digest: its coverage is asked as that of one that was built here.

    Raises KernelsError for an image without the table that the plan's server needs.
    """
    table = read_table(find_docker(place.remote), image, MOE_TABLE) if needs_table(plan) else None
    if table is None:
        require_table(image, plan, allow_untuned=allow_untuned)
        return RowSources()
    path = place.home.kernels / "images" / FileName(f"{image.inputs[MOE_TABLE][:12]}.csv")
    return RowSources(tables=(write_cache(path, table),))


def require_table(image: PrebuiltImage, plan: Plan, *, allow_untuned: bool) -> None:
    """Raise KernelsError for a plan whose server needs a table that its image does not carry, unless that is meant."""
    if needs_table(plan) and MOE_TABLE not in image.inputs and not allow_untuned:
        raise KernelsError(
            f"`{image.reference}` carries no table of tuned kernels",
            where=f"profile {plan.profile}",
            hint="`deploy build PROFILE` makes one with it; or `--allow-untuned`",
        )
