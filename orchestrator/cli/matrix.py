"""The command `deploy matrix`."""

from orchestrator.core.console import print_json
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.planner.planning import usable_plans
from orchestrator.runtimes import runtime_class


def command() -> None:
    """Print the profiles with an image as a GitHub Actions matrix, with the disk space of each build in GiB."""
    entries = [
        {
            "profile": plan.profile,
            "engine": plan.engine.name,
            "base": plan.engine.image,
            "disk_gib": IMAGE_BYTES >> 30,
        }
        for plan in usable_plans()
        if runtime_class(plan.runtime).contained
    ]
    print_json({"include": entries})
