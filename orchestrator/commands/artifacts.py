"""Everything that is rendered from one plan."""

from collections.abc import Mapping

from orchestrator.plan import Plan
from orchestrator.render.artifacts import Artifacts, ContextFile
from orchestrator.render.files import files
from orchestrator.runtimes import runtime_kind


def render_artifacts(plan: Plan, inputs: Mapping[str, bytes] | None = None) -> Artifacts:
    """What the plan's runtime starts a server from. `inputs` are the files given to patches, by input name."""
    return runtime_kind(plan.runtime).render(plan, inputs or {})


def rendered_files(artifacts: Artifacts, name: str | None = None) -> tuple[ContextFile, ...]:
    """The artifacts as files for a server of that name, sorted by path: for `deploy render` and for run directories."""
    own = runtime_kind(artifacts.plan.runtime).files(artifacts, name or artifacts.plan.profile)
    return tuple(sorted((*files(artifacts), *own), key=lambda file: file.path))
