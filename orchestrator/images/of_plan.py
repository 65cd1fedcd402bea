"""From a plan to its image: what `deploy build` and `deploy up` share."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.core.errors import BuildError
from orchestrator.images.build import BuildOptions, Built, ensure_image
from orchestrator.images.client import Docker
from orchestrator.plan import Plan
from orchestrator.render.artifacts import Artifacts, BuildContext


def image_tag(plan: Plan, build: BuildContext) -> str:
    """The tag of a plan's image: the digest of what it is built from, so "already built?" is a comparison."""
    return f"deploy/{plan.profile}:{build.digest[:12]}"


def build_image(
    docker: Docker,
    artifacts: Artifacts,
    *,
    secrets: Mapping[str, Path] | None = None,
    network: str | None = None,
    no_cache: bool = False,
) -> Built:
    """The image of artifacts, built where there is none. Raises BuildError; PatchError where a patch does not fit."""
    plan, build = artifacts.plan, artifacts.build
    if build is None:
        raise BuildError(f"`{plan.profile}` runs without an image", hint="`--set runtime=docker`")
    options = BuildOptions(tag=image_tag(plan, build), no_cache=no_cache, network=network, secrets=secrets or {})
    return ensure_image(docker, plan.engine, build, options)


def on_base(plan: Plan, reference: str) -> Plan:
    """The plan on another base image, `name:tag` or `name:tag@sha256:…`."""
    name, _, digest = reference.partition("@")
    return replace(plan, engine=replace(plan.engine, image=name, image_digest=digest or None))
