"""The environment variables that an image sets for its engine."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.catalog import Catalog
from orchestrator.core.console import note
from orchestrator.core.errors import HostError
from orchestrator.core.files import read_private, write_cache
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.images.client import find_docker
from orchestrator.images.config import ImageConfig, docker_config, local_config
from orchestrator.images.registry import Registry
from orchestrator.plan.known_issues import matching_issues
from orchestrator.plan.plan import EnvVar, Plan, PlanWarning
from orchestrator.planner.planning import read_known_issues
from orchestrator.render.dockerfile import base_reference
from orchestrator.runtimes import runtime_class


@dataclass(frozen=True, kw_only=True)
class ImageVariable:
    """One variable of the image; `plan` is the plan's variable that replaces it, or None."""

    name: str
    image: str
    plan: EnvVar | None

    def __str__(self) -> str:
        if self.plan is None or self.plan.value == self.image:
            return f"{self.name}={self.image}"
        return f"{self.name}={self.plan.value} (the image sets {self.image}; {self.plan.source})"


def image_of(plan: Plan) -> str | None:
    """Return the image of a plan's server; None if it runs in no image."""
    if not runtime_class(plan.runtime).in_container or plan.engine.image is None:
        return None
    return plan.prebuilt_image or base_reference(plan.engine)


def known_config(image: str, home: Home) -> ImageConfig | None:
    """Return the configuration of a local image, or the cached one of an earlier query; None if unknown."""
    if (found := local_config(image)) is not None:
        return found
    try:
        return ImageConfig.from_json(read_private(_saved(image, home)).decode())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def asked_config(image: str, home: Home, registry: Registry, host: str | None = None) -> ImageConfig:
    """Return the configuration of an image from the Docker host or its registry, and cache it.

    `host` is another Docker host than this one. Raises BuildError if neither has the image.
    """
    try:
        found = docker_config(find_docker(host), image)
    except HostError:  # no Docker here: query the registry anyway
        found = None
    found = found or registry.config(image)
    keep_config(found, home)
    return found


def keep_config(config: ImageConfig, home: Home) -> None:
    """Cache the configuration of an image; if the home is not writable, print a note."""
    try:
        write_cache(_saved(config.reference, home), config.to_json())
    except OSError as error:
        note(f"cannot cache the configuration of `{config.reference}`: {error.strerror}")


def image_variables(plan: Plan, config: ImageConfig) -> Iterator[ImageVariable]:
    """Yield the variables of the image that affect its engine, each with the plan's variable that replaces it."""
    own = {variable.name: variable for variable in plan.env}
    for name, value in config.engine_env.items():
        yield ImageVariable(name=name, image=value, plan=own.get(name))


def image_warnings(plan: Plan, config: ImageConfig) -> tuple[PlanWarning, ...]:
    """Return the known issues that match only with the variables of the image."""
    known = {warning.id for warning in plan.warnings}
    found = matching_issues(read_known_issues(Catalog.from_environment()).warnings, plan, image_env=config.env)
    return tuple(warning for warning in found if warning.id not in known)


def image_config(plan: Plan, home: Home) -> ImageConfig | None:
    """Return the local or cached configuration of a plan's image; None if there is none."""
    image = image_of(plan)
    return known_config(image, home) if image is not None else None


def note_environment(plan: Plan, config: ImageConfig | None) -> None:
    """Print the variables that the image of a plan sets; nothing for a plan without an image."""
    image = image_of(plan)
    if image is None:
        return
    if config is None:
        note(f"the environment of `{image}` is unknown; `deploy inspect {image}` queries its registry")
        return
    variables = [str(variable) for variable in image_variables(plan, config)]
    note(f"`{image}` sets {', '.join(variables) or 'no variable of its engine'}")


def _saved(image: str, home: Home) -> Path:
    return home.images / FileName(f"{hashlib.sha256(image.encode()).hexdigest()[:16]}.json")
