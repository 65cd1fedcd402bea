"""Before a container starts: its image, built and proved where there is none."""

from collections.abc import Mapping
from dataclasses import asdict

from orchestrator.core.console import note
from orchestrator.images.client import find_docker
from orchestrator.images.of_plan import build_image, image_tag
from orchestrator.images.receipt import PRESENT
from orchestrator.images.sources import image_sources
from orchestrator.plan import Plan
from orchestrator.render.artifacts import Artifacts
from orchestrator.render.dockerfile import build_context
from orchestrator.runtimes.base import Place, Prepared
from orchestrator.runtimes.docker.container import render


def rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """The command, the container, and the image's build context with the files that patches are given."""
    build = build_context(plan, image_sources(plan, inputs=inputs))
    return render(plan, build, image_tag(plan, build))


def prepare(artifacts: Artifacts, place: Place) -> Prepared:
    """Build the plan's image where there is none, on the machine it is to run on. Raises BuildError, PatchError."""
    built = build_image(find_docker(place.far), artifacts)
    note(f"image {built.tag}, {'built' if built.built else 'found'} with {built.builder}")
    records = {"image.json": {"tag": built.tag, "id": built.image_id}, "patches.json": asdict(built.receipt)}
    carried = (patch.id for patch in artifacts.plan.patches)
    upstream = frozenset(patch for patch in carried if built.receipt.state(patch) == PRESENT)
    return Prepared(artifacts=artifacts, records=records, upstream=upstream)
