"""`up --image`: a plan for an image that is ready, decided with what its receipt says it was given."""

from dataclasses import dataclass, replace
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import BuildError, HostError, KernelsError, UsageError
from orchestrator.core.files import write_whole
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName, ImageReference, UnsafeValueError
from orchestrator.images.client import Docker, find_docker
from orchestrator.images.prebuilt import ReadyImage, fetch_ready, find_ready, read_ready, read_table, require_ready
from orchestrator.images.receipt import require_receipt
from orchestrator.images.registry import Registry
from orchestrator.kernels.plan_coverage import RowSources, takes_table
from orchestrator.patches.schema import MOE_TABLE
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import plan_with
from orchestrator.render.dockerfile import repository
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import Place

_ASKED: Final = Registry(within=5.0)  # seconds that a dry run may wait for it


@dataclass(frozen=True, kw_only=True)
class ReadyRequest:
    """Which profile is to run from which image."""

    profile: str
    overrides: tuple[str, ...]
    image: str
    accept_untuned: bool

    def __post_init__(self) -> None:
        """Raise UsageError for what cannot be the name of an image."""
        require_image_name(self.image)

    def decide(self, image: ReadyImage, home: Home) -> Plan:
        """The plan for an image that was found. Raises BuildError with everything in which the two differ."""
        plan = plan_with(self.profile, self.overrides, home, image.inputs)
        require_ready(plan, image)
        return replace(plan, ready_image=image.reference)


def require_image_name(text: str) -> None:
    """Raise UsageError for what cannot be the name of an image."""
    try:
        ImageReference(text)
    except UnsafeValueError as error:
        raise UsageError(str(error)) from error


def require_contained(plan: Plan) -> None:
    """Raise UsageError for a plan whose runtime starts no image."""
    if not runtime_class(plan.runtime).contained:
        raise UsageError(f"the {plan.runtime} runtime starts no image", hint="`--set runtime=docker`, or no `--image`")


def on_image(plan: Plan, image: str | None) -> Plan:
    """A plan that starts the image, taken at its word; the plan itself without one. Raises as `require_contained`."""
    if image is None:
        return plan
    require_contained(plan)
    require_image_name(image)
    return replace(plan, ready_image=image)


def ready_plan(request: ReadyRequest, place: Place) -> tuple[Plan, RowSources]:
    """The plan on an image that is fetched and looked into, and where the rows of its table are read from.

    Where others fetch it, its receipt is asked of its registry, and nothing is pulled here.

    Raises BuildError for an image that is not the plan's, KernelsError for one without the table that its server needs.
    """
    asked = plan_with(request.profile, request.overrides, place.home, {})
    if runtime_class(asked.runtime).elsewhere:
        return ready_preview(request, asked, place), RowSources()
    docker, home = find_docker(place.far), place.home
    reference = fetch_ready(docker, request.image)
    image = read_ready(docker, reference)
    plan = request.decide(image, home)
    note(f"image {reference}: as `{plan.profile}` needs it, nothing is built")
    return plan, _rows(request, plan, image, docker, home)


def ready_rows(plan: Plan, place: Place, *, accept_untuned: bool) -> RowSources:
    """Where the rows of a plan that was decided for a ready image are read from, once it is here.

    Raises BuildError for an image that is gone, or is another one by now.
    """
    if runtime_class(plan.runtime).elsewhere:
        return RowSources()
    docker, reference = find_docker(place.far), plan.ready_image or ""
    image = read_ready(docker, fetch_ready(docker, reference))
    require_ready(plan, image)
    request = ReadyRequest(profile=plan.profile, overrides=(), image=reference, accept_untuned=accept_untuned)
    return _rows(request, plan, image, docker, place.home)


def ready_preview(request: ReadyRequest, plan: Plan, place: Place, registry: Registry = _ASKED) -> Plan:
    """The same without fetching anything: the receipt of an image that is here, else as its registry tells it.

    Where neither can tell, that is said, and the plan is the profile's own.
    """
    pulled_here = not runtime_class(plan.runtime).elsewhere
    later = "held against the plan once it is pulled" if pulled_here else "not held against the plan: nodes pull it"
    image = None if place.far else _here(request.image)
    if image is None and plan.kubernetes is not None and plan.kubernetes.image_on_node:
        note(f"`{request.image}` is looked for on the nodes alone; its receipt is not held against the plan")
    elif image is None:
        image = _told(request.image, registry, later)
    if image is None:
        return replace(plan, ready_image=request.image)
    plan = request.decide(image, place.home)
    if MOE_TABLE not in image.inputs:
        _require_no_table(request, plan, image)
    return plan


def _here(image: str) -> ReadyImage | None:
    try:
        return find_ready(find_docker(), image)
    except HostError:  # no daemon: what would be started can be shown all the same
        return None


def _told(image: str, registry: Registry, later: str) -> ReadyImage | None:
    """As the registry's labels have it, a few kilobytes; None, aloud, with what comes of it `later`, else."""
    try:
        config = registry.config(image)
    except BuildError as error:
        note(f"{error.message}; its receipt is {later}")
        return None
    receipt = require_receipt(config.labels, image)
    reference = f"{repository(image.partition('@')[0])}@{config.digest}"
    return ReadyImage(reference=reference, receipt=receipt, labels=config.labels)


def _rows(request: ReadyRequest, plan: Plan, image: ReadyImage, docker: Docker, home: Home) -> RowSources:
    """The table in the image, kept by its digest: its coverage is asked as that of one that was built here."""
    table = read_table(docker, image, MOE_TABLE) if takes_table(plan) else None
    if table is not None:
        path = home.kernels / "images" / FileName(f"{image.inputs[MOE_TABLE][:12]}.csv")
        return RowSources(tables=(write_whole(path, table),))
    _require_no_table(request, plan, image)
    return RowSources()


def _require_no_table(request: ReadyRequest, plan: Plan, image: ReadyImage) -> None:
    """Raise KernelsError for a plan whose server needs a table that its image does not carry, unless that is meant."""
    if takes_table(plan) and not request.accept_untuned:
        raise KernelsError(
            f"`{image.reference}` carries no table of tuned kernels",
            where=f"profile {plan.profile}",
            hint="`deploy build PROFILE` makes one with it; or `--accept-untuned`",
        )
