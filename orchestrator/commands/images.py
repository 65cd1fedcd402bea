"""From a plan to its image: what `deploy build` and `deploy up` share."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.commands.artifacts import image_tag
from orchestrator.images.build import BuildOptions, Built, ensure_image
from orchestrator.images.client import Docker
from orchestrator.images.sources import image_sources
from orchestrator.plan import Plan
from orchestrator.render.dockerfile import build_context


def build_image(
    docker: Docker,
    plan: Plan,
    *,
    inputs: Mapping[str, bytes] | None = None,
    secrets: Mapping[str, Path] | None = None,
    network: str | None = None,
    no_cache: bool = False,
) -> Built:
    """The image of a plan, built where there is none. Raises BuildError; PatchError for a patch that does not fit."""
    context = build_context(plan, image_sources(plan, inputs=inputs))
    options = BuildOptions(tag=image_tag(plan, context), no_cache=no_cache, network=network, secrets=secrets or {})
    return ensure_image(docker, plan.engine, context, options)


def on_base(plan: Plan, reference: str) -> Plan:
    """The plan on another base image, `name:tag` or `name:tag@sha256:…`."""
    name, _, digest = reference.partition("@")
    return replace(plan, engine=replace(plan.engine, image=name, image_digest=digest or None))
