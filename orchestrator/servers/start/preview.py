"""`deploy up --dry-run`: the steps, the files and the warnings of a start; nothing is started or written."""

from dataclasses import dataclass
from functools import partial

from orchestrator.core.errors import KernelsError
from orchestrator.core.paths import Home
from orchestrator.images.config import ImageConfig
from orchestrator.kernels.plan_coverage import report_coverage, require_tuned
from orchestrator.plan.capacity import Capacity
from orchestrator.plan.plan import Plan, PlanWarning
from orchestrator.planner.capacity import note_capacity
from orchestrator.planner.estimate import UpStep, steps_of
from orchestrator.planner.plan_warnings import (
    image_config,
    note_environment,
    plan_warnings,
    report_warnings,
    require_unblocked,
    warn_unpinned,
)
from orchestrator.planner.planning import rendered_files
from orchestrator.planner.source import ProfileSource, collect_rejections
from orchestrator.render.artifacts import RenderedFile
from orchestrator.runs.run_dir import require_name
from orchestrator.servers.start.host import resolve_host_ref
from orchestrator.servers.start.kernels import require_archive
from orchestrator.servers.start.plans import build_first_plan
from orchestrator.servers.start.request import UpRequest


@dataclass(frozen=True, kw_only=True)
class Preview:
    """A preview of `up`: its steps, and the files from which it would start the server `name`."""

    plan: Plan
    name: str
    home: Home
    steps: tuple[UpStep, ...]
    files: tuple[RenderedFile, ...]
    capacity: Capacity | None  # None for the plan of a run or lockfile
    image: ImageConfig | None  # None if unknown

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """The warnings about the plan and its image."""
        return plan_warnings(self.plan, name=self.name, image=self.image)

    def report(self) -> None:
        """Print the known facts of kernels, image and capacity, then the warnings."""
        if not self.plan.prebuilt_image:
            report_coverage(self.plan, self.home)
        note_environment(self.plan, self.image)
        if self.capacity is not None:
            note_capacity(self.plan, self.capacity)
        report_warnings(self.plan, name=self.name, image=self.image)
        if self.capacity is not None:
            warn_unpinned(self.plan)


def preview(request: UpRequest, home: Home) -> Preview:
    """Return the preview of an `up`. Raises the DeployErrors that `up` raises before sglang checks the arguments."""
    if request.name:
        require_name(request.name)
    source = request.source(home)
    home = source.home
    find_host = partial(resolve_host_ref, source.runtime, home, request.host, rank_hosts=request.rank_hosts)
    with collect_rejections(source, find_host, source.require_startable):
        source.require_startable()
        host_ref = find_host()
        artifacts = build_first_plan(request, source, host_ref, offline=True)
        files = rendered_files(artifacts, request.name)
    plan = artifacts.plan
    image = image_config(plan)
    require_unblocked(source, plan, image)
    require_archive(plan, host_ref, of_run=request.run is not None, offline=True)
    if not plan.prebuilt_image and not request.allow_untuned:
        try:
            require_tuned(plan, home)
        except KernelsError:
            report_coverage(plan, home)  # the coverage of each key then precedes the error
            raise
    capacity = None
    if isinstance(source, ProfileSource) and not source.has_fixed_plan:
        capacity = source.valid.capacity_for(source.valid.displayed_load)
    return Preview(
        plan=plan,
        name=request.name or plan.profile,
        home=home,
        steps=steps_of(artifacts, host_ref),
        files=files,
        capacity=capacity,
        image=image,
    )
