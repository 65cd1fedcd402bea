"""The environment variables that an image on this host sets for its engine."""

from collections.abc import Iterator

from orchestrator.core.catalog import Catalog
from orchestrator.core.console import note
from orchestrator.images.config import ImageConfig, local_config
from orchestrator.plan.known_issues import matching_issues
from orchestrator.plan.plan import Plan, PlanWarning
from orchestrator.planner.planning import read_known_issues
from orchestrator.planner.prebuilt import image_of


def image_config(plan: Plan) -> ImageConfig | None:
    """Return the configuration of a plan's image on this host; None if there is none."""
    image = image_of(plan)
    return local_config(image) if image is not None else None


def image_variables(plan: Plan, config: ImageConfig) -> Iterator[str]:
    """Yield the variables of the image that affect its engine, each with the plan's value that replaces it."""
    own = {variable.name: variable for variable in plan.env}
    for name, value in config.engine_env.items():
        variable = own.get(name)
        if variable is None or variable.value == value:
            yield f"{name}={value}"
        else:
            yield f"{name}={variable.value} (the image sets {value}; {variable.source})"


def image_warnings(plan: Plan, config: ImageConfig) -> tuple[PlanWarning, ...]:
    """Return the known issues that match only with the variables of the image."""
    known = {warning.id for warning in plan.warnings}
    found = matching_issues(read_known_issues(Catalog.from_environment()).warnings, plan, image_env=config.env)
    return tuple(warning for warning in found if warning.id not in known)


def note_environment(plan: Plan, config: ImageConfig | None) -> None:
    """Print the variables that the image of a plan sets; nothing for a plan without an image."""
    image = image_of(plan)
    if image is not None and config is None:
        note(f"the environment of `{image}` is unknown; `deploy inspect {image}` queries its registry")
    elif config is not None:
        note(f"`{image}` sets {', '.join(image_variables(plan, config)) or 'no variable of its engine'}")
