"""A build with an extra step. In the program `slow_build.py BASE-IMAGE`, this step takes ten minutes."""

import dataclasses
import sys

from orchestrator.images.build import BuildOptions, ensure_image
from orchestrator.images.client import find_docker
from orchestrator.images.sources import image_sources
from orchestrator.planner.planning import load
from orchestrator.render.artifacts import BuildContext
from orchestrator.render.dockerfile import build_context
from orchestrator.servers.start.prepare import base_overrides

TAG = "deploy-test/slow:1"
STEP = "RUN sleep 600"


def with_step(step: str, base: str) -> BuildContext:
    """Return the build context of `mi355x-tp8-july` with an extra last step."""
    plan = load("mi355x-tp8-july", overrides=base_overrides(base)).plan
    sources = image_sources(plan)
    return build_context(plan, dataclasses.replace(sources, template=f"{sources.template}\n{step}\n"))


def main(base: str) -> None:
    options = BuildOptions(tag=TAG, no_cache=True, network=None, secrets={})
    ensure_image(
        find_docker(),
        load("mi355x-tp8-july", overrides=base_overrides(base)).plan.engine,
        with_step(STEP, base),
        options,
    )


if __name__ == "__main__":
    main(sys.argv[1])
