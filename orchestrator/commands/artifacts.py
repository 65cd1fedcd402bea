"""Everything that is rendered from one plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.commands.planning import load
from orchestrator.images.sources import image_sources, input_digests, read_inputs
from orchestrator.plan import Plan
from orchestrator.render.artifacts import Artifacts, BuildContext, ContextFile
from orchestrator.render.command import server_command
from orchestrator.render.dockerfile import build_context
from orchestrator.render.files import files
from orchestrator.runtimes.docker.container import container_spec, docker_run_line


def plan_given(profile: str, overrides: Sequence[str], files: Mapping[str, Path]) -> tuple[Plan, dict[str, bytes]]:
    """A profile's plan, decided with files that its patches are given, and their contents; both by input name."""
    inputs = read_inputs(files)
    return load(profile, overrides=overrides, inputs=input_digests(inputs)).plan, inputs


def render_artifacts(plan: Plan, inputs: Mapping[str, bytes] | None = None) -> Artifacts:
    """The command, and for the docker runtime the build context and the container.

    `inputs` are the files given to patches, by input name.
    """
    if plan.runtime != "docker":
        return Artifacts(plan=plan, command=server_command(plan), build=None, container=None)
    build = build_context(plan, image_sources(plan, inputs=inputs))
    return Artifacts(
        plan=plan, command=server_command(plan), build=build, container=container_spec(plan, image_tag(plan, build))
    )


def image_tag(plan: Plan, build: BuildContext) -> str:
    """The tag of a plan's image: the digest of what it is built from, so "already built?" is a comparison."""
    return f"deploy/{plan.profile}:{build.digest[:12]}"


def rendered_files(artifacts: Artifacts, name: str | None = None) -> tuple[ContextFile, ...]:
    """The artifacts as files, for `deploy render` and for run directories."""
    line = docker_run_line(artifacts, name or artifacts.plan.profile) if artifacts.container else None
    return files(artifacts, docker_run=line)
