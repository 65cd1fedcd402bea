"""The plans of one start: the first from known facts, the final one from prepared files."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from orchestrator.core.console import note
from orchestrator.core.errors import HostError
from orchestrator.images.client import DockerCli, find_docker
from orchestrator.images.prebuilt import PrebuiltImage, require_matches_plan
from orchestrator.images.sources import input_digests
from orchestrator.kernels.coverage import uses_tuned_table
from orchestrator.kernels.plan_coverage import NO_SOURCES, report_coverage, require_tuned
from orchestrator.kernels.plan_table import make_table
from orchestrator.plan.facts import Facts
from orchestrator.plan.fusion import might_fuse
from orchestrator.planner.plan_warnings import report_warnings, require_unblocked
from orchestrator.planner.planning import render_artifacts
from orchestrator.planner.prebuilt import fetch_image, known_image, newest_image, require_table, rows_in
from orchestrator.planner.source import PlanSource, ProfileSource
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.servers.start.argument_check import engine_files, require_accepted
from orchestrator.servers.start.host import require_host_per_node, with_network
from orchestrator.servers.start.prepare import (
    builtin_tables,
    ensure_checkpoint,
    known_experts,
    mirror_path,
    prepare_engine,
    prepare_overlay,
)
from orchestrator.servers.start.request import UpRequest


def build_first_plan(request: UpRequest, source: PlanSource, host_ref: HostRef, *, offline: bool = False) -> Artifacts:
    """Return the first plan with its artifacts, without slow steps.

    With `offline`, contact no other host and use the local image of a tag. Raises ProfileError; UsageError for a wrong
    number of hosts; BuildError or KernelsError for a prebuilt image that does not match the plan.
    """
    image = _known_image(source, host_ref, offline=offline)
    first = _build_plan(source, host_ref, image)
    if image is not None:
        require_table(image, first.plan, allow_untuned=request.allow_untuned)
    require_host_per_node(first.plan, host_ref)
    return first


def _build_plan(source: PlanSource, host_ref: HostRef, image: PrebuiltImage | None) -> Artifacts:
    """Return the plan, with its artifacts, that follows from the known facts of checkpoint, tables and image."""
    files = source.files() if image is None and source.image is None else {}
    facts = Facts(
        experts=known_experts(source.model, host_ref),
        inputs=input_digests(files) if image is None else image.inputs,
        image=source.image if image is None else image.reference,
    )
    plan = source.build(facts)
    if image is not None:
        require_matches_plan(plan, image)
    return render_artifacts(plan, files)


def _known_image(source: PlanSource, host_ref: HostRef, *, offline: bool) -> PrebuiltImage | None:
    """Return the prebuilt image of a profile without pulling it; None if it is unknown."""
    if not isinstance(source, ProfileSource) or source.image is None:
        return None
    if source.image_is_on_nodes:
        note(f"`{source.image}` is on the nodes only; its receipt is not compared with the plan")
        return None
    pulled_by_up = not runtime_class(source.runtime).cluster_managed
    if pulled_by_up and not offline:
        return newest_image(source.image, find_docker(host_ref.remote))
    docker: DockerCli | None = None
    with suppress(HostError):  # no daemon: a preview is still possible
        docker = None if host_ref.remote else find_docker()
    return known_image(source.image, docker, pulled_by_up=pulled_by_up)


def prepare_start(request: UpRequest, source: PlanSource, first: Artifacts, host_ref: HostRef) -> PreparedRun:
    """Prepare checkpoint, tables and engine, and return the final plan with its engine.

    The engine checks the arguments before the checkpoint is downloaded. If the kernel table is still missing, the image
    is built first without a table, then with the new one.
    """
    host_ref = with_network(host_ref)
    plan, home, rows, image, prepared = first.plan, host_ref.home, NO_SOURCES, None, None
    if plan.prebuilt_image is not None and not runtime_class(plan.runtime).cluster_managed:
        image, *_ = [fetch_image(plan.prebuilt_image, node) for node in host_ref.nodes]
        rows = rows_in(image, plan, host_ref, allow_untuned=request.allow_untuned)
        note(f"image {image.reference}: matches `{plan.profile}`, no build is needed")
    coverage = report_coverage(plan, home, rows)
    if not request.allow_untuned:
        require_tuned(plan, home, rows)
    files = engine_files(plan, host_ref, fetch=request.stage) if plan.model.checkpoint.source == "hub" else None
    if files is not None:
        prepared = _prepare_checked(source, first, host_ref, files)
    ensure_checkpoint(plan, host_ref, stage=request.stage)
    mirror = mirror_path(plan.model, host_ref)
    if mirror is not None and mirror.is_dir() and (uses_tuned_table(plan) or might_fuse(plan)):
        rows = replace(rows, model=mirror)
    if not source.has_fixed_plan and plan.prebuilt_image is None:
        make_table(plan, home, partial(builtin_tables, plan, home, host_ref), allow_untuned=request.allow_untuned)
    final = _build_plan(source, host_ref, image)
    report_warnings(final.plan, before=plan)
    report_coverage(final.plan, home, rows, before=coverage)  # now with the checkpoint's config and the built table
    if not request.allow_untuned:
        require_tuned(final.plan, home, rows)
    if prepared is None or final != first:
        prepared = _prepare_checked(source, final, host_ref, files or engine_files(plan, host_ref, fetch=False))
    require_unblocked(source, final.plan, prepared.image)
    prepare_overlay(prepared, host_ref)
    return prepared


def _prepare_checked(
    source: PlanSource, artifacts: Artifacts, host_ref: HostRef, files: Mapping[str, str] | None
) -> PreparedRun:
    """Prepare the engine; if it is on this host, check the arguments with it. Raises BuildError, ProfileError."""
    prepared = prepare_engine(artifacts, host_ref)
    if prepared.engine is not None:
        require_accepted(prepared.artifacts, prepared.engine, host_ref.home, files, source.location)
    else:
        note("sglang checks the arguments in the cluster before the server starts")
    return prepared
