"""The image's own environment: what an engine is started with that no profile says."""

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
    """One variable of the image, and what the plan sets in its place; `plan` is None where the image's own holds."""

    name: str
    image: str
    plan: EnvVar | None

    def __str__(self) -> str:
        if self.plan is None or self.plan.value == self.image:
            return f"{self.name}={self.image}"
        return f"{self.name}={self.plan.value} (the image says {self.image}; {self.plan.source})"


def image_of(plan: Plan) -> str | None:
    """The image whose environment a plan's server starts in; None for one that runs in no image."""
    if not runtime_class(plan.runtime).in_container or plan.engine.image is None:
        return None
    return plan.prebuilt_image or base_reference(plan.engine)


def known_config(image: str, home: Home) -> ImageConfig | None:
    """What is known without a network: of an image on this machine, else of one that was asked for before."""
    if (found := local_config(image)) is not None:
        return found
    try:
        return ImageConfig.from_json(read_private(_kept(image, home)).decode())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def asked_config(image: str, home: Home, registry: Registry, host: str | None = None) -> ImageConfig:
    """The configuration of an image, of the docker host or its registry, kept for whoever asks later.

    `host` is another docker host than this machine's.

    Raises BuildError where neither can tell.
    """
    try:
        found = docker_config(find_docker(host), image)
    except HostError:  # no docker here: the registry is asked all the same
        found = None
    found = found or registry.config(image)
    keep_config(found, home)
    return found


def keep_config(config: ImageConfig, home: Home) -> None:
    """Keep what is known of an image; a home that takes no file does not matter here."""
    try:
        write_cache(_kept(config.reference, home), config.to_json())
    except OSError as error:
        note(f"what is known of `{config.reference}` is not kept: {error.strerror}")


def image_variables(plan: Plan, config: ImageConfig) -> Iterator[ImageVariable]:
    """The variables of the image that steer its engine, each with what the plan says of it."""
    own = {variable.name: variable for variable in plan.env}
    for name, value in config.engine_env.items():
        yield ImageVariable(name=name, image=value, plan=own.get(name))


def image_warnings(plan: Plan, config: ImageConfig) -> tuple[PlanWarning, ...]:
    """What is reported of the plan with the image's own variables, and not of the plan alone."""
    known = {warning.id for warning in plan.warnings}
    found = matching_issues(read_known_issues(Catalog.from_environment()).warnings, plan, image_env=config.env)
    return tuple(warning for warning in found if warning.id not in known)


def image_config(plan: Plan, home: Home) -> ImageConfig | None:
    """Return what is known without a network of the image that a plan's server starts in; None for no image."""
    image = image_of(plan)
    return known_config(image, home) if image is not None else None


def note_environment(plan: Plan, config: ImageConfig | None) -> None:
    """Say what the server gets from its image, as far as that is known; nothing for a plan without one."""
    image = image_of(plan)
    if image is None:
        return
    if config is None:
        note(f"the environment of `{image}` is not known here; `deploy inspect {image}` asks its registry")
        return
    variables = [str(variable) for variable in image_variables(plan, config)]
    note(f"`{image}` sets {', '.join(variables) or 'no variable of its engine'}")


def _kept(image: str, home: Home) -> Path:
    return home.images / FileName(f"{hashlib.sha256(image.encode()).hexdigest()[:16]}.json")
