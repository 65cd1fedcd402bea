"""The image of a plan, for every runtime that starts servers from images."""

from collections.abc import Iterator, Mapping

from orchestrator.core.errors import Problem
from orchestrator.images.build import image_tag
from orchestrator.images.client import DockerCli
from orchestrator.images.patch_check import python_in
from orchestrator.images.sources import image_sources
from orchestrator.kernels.plan_coverage import needs_table, table_coverage
from orchestrator.patches.schema import MOE_TABLE
from orchestrator.plan.plan import Plan
from orchestrator.plan.rules import RuleContext
from orchestrator.render.artifacts import Artifacts, BuildContext
from orchestrator.render.dockerfile import build_context
from orchestrator.runtimes.base import EnginePython


def has_image(context: RuleContext) -> Iterator[Problem]:
    """Require a base image."""
    if context.profile.engine.image is None:
        message = f"the {context.profile.runtime} runtime needs `engine.image`"
        yield Problem(message, context.location("engine"), "`--set engine.image=NAME:TAG`, or `--set runtime=process`")


def image_of(plan: Plan, inputs: Mapping[str, bytes]) -> tuple[BuildContext | None, str]:
    """Return the image's build context with the input files of patches, and its name. Prebuilt: no context."""
    if plan.prebuilt_image is not None:
        return None, plan.prebuilt_image
    table = inputs.get(MOE_TABLE) if needs_table(plan) else None
    coverage = table_coverage(plan, table) if table is not None else ""
    build = build_context(plan, image_sources(plan, inputs=inputs, coverage=coverage))
    return build, image_tag(plan, build)


def engine_in(docker: DockerCli, image: str, artifacts: Artifacts) -> EnginePython:
    """Return the Python of an image on the Docker host, with the server's variables; `image` is its id."""
    env = artifacts.first_server.command.env
    return EnginePython(
        identity=image, run=lambda program, stdin: python_in(docker, image, program, stdin=stdin, env=env)
    )
