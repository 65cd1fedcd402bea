"""Preparation of a start: checkpoint, engine, kernel tables, config overlay."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from orchestrator.checkpoints.checkpoint import Checkpoint, local_checkpoint
from orchestrator.checkpoints.generate import generate_model
from orchestrator.checkpoints.overlay import overlay_path, write_overlay
from orchestrator.checkpoints.profile_match import require_profile_match
from orchestrator.checkpoints.staging import ensure_staged, ensure_staged_remote
from orchestrator.checkpoints.verify import checkpoint_directory
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import Progress, note, warn
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName, RelativePath
from orchestrator.hosts.venvs.venv import engine_python
from orchestrator.kernels.disk.experts import read_experts
from orchestrator.kernels.plan_coverage import RowSources, check_table, needs_table
from orchestrator.kernels.plan_table import make_table
from orchestrator.patches.ledger import read_ledger
from orchestrator.patches.schema import MOE_TABLE, ConfigTransform
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import NO_DETECTED_PATCHES, Model, Plan
from orchestrator.planner.source import profile_source
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.servers.start.host import resolve_host_ref


def ensure_checkpoint(plan: Plan, host_ref: HostRef, *, stage: bool) -> None:
    """Ensure that the checkpoint is complete on the server's host: generate, verify or stage it.

    Stage it only with `stage`; in a cluster, do nothing. Raises CheckpointError, HostError.
    """
    if runtime_class(plan.runtime).cluster_managed:
        note(f"the checkpoint of `{plan.model.name}` is on the server's node; its files were not checked")
        return
    if host_ref.remote is not None:
        for node in host_ref.nodes:
            _ensure_remote(plan, node, stage=stage)
        return
    home, directory = host_ref.home, checkpoint_directory(plan.model, host_ref.home)
    if plan.model.checkpoint.source == "generated":
        python = Path(engine_python(plan.engine, home))
        generator = Catalog.of(home).path(EntryKind.IMAGE_FILE, plan.model.checkpoint.path)
        generate_model(plan.model, generator, python=python, home=home, progress=Progress())
        require_profile_match(directory, plan.model)
    else:
        note(f"checkpoint {directory}: {ensure_staged(plan, directory, allowed=stage)}")


def _ensure_remote(plan: Plan, host_ref: HostRef, *, stage: bool) -> None:
    remote = str(host_ref.remote)
    if plan.model.checkpoint.source == "generated":
        warn(f"the checkpoint of `{plan.model.name}` is generated on {remote}, and not checked")
        return
    mirror = mirror_path(plan.model, host_ref)
    verified = ensure_staged_remote(plan, remote_directory(plan), remote, allowed=stage, mirror=mirror)
    note(f"checkpoint {remote}: {verified.directory}: {verified}")


def remote_directory(plan: Plan) -> str:
    """Return the checkpoint directory on a remote host: absolute, or relative to the home of `deploy` there."""
    return str(checkpoint_directory(plan.model, Home(Path())))


def mirror_path(model: Model, host_ref: HostRef) -> Path | None:
    """Return the local copy of config and headers of a remote checkpoint; None for a local one."""
    return (
        host_ref.home.for_remote(host_ref.remote) / "headers" / FileName(model.name)
        if host_ref.remote is not None
        else None
    )


def known_checkpoint(model: Model, host_ref: HostRef) -> Checkpoint | None:
    """Return the local checkpoint, or the local copy of a remote one's headers; None if there is neither."""
    return local_checkpoint(mirror_path(model, host_ref) or checkpoint_directory(model, host_ref.home))


def known_experts(model: Model, host_ref: HostRef) -> MoeCheckpoint | None:
    """Return how a checkpoint stores its experts; None if unknown, or if it has no shared expert to fuse."""
    if model.moe is None or not model.moe.shared_experts:
        return None
    return read_experts(checkpoint) if (checkpoint := known_checkpoint(model, host_ref)) is not None else None


def plan_to_build(
    profile: str,
    overrides: Sequence[str],
    home: Home,
    *,
    base: str | None,
    input_paths: Mapping[str, Path],
    allow_untuned: bool,
    host: str | None = None,
) -> tuple[Plan, dict[str, bytes]]:
    """Return the plan of an image build and its input files, with the kernel table that `up` would make.

    A table in `input_paths` replaces that table. `base` replaces the base image of the engine; `host` builds the image.
    Raises the errors of `make_table` and `check_table`.
    """
    overrides = (*overrides, *(base_overrides(base) if base else ()))
    source = profile_source(profile, overrides, home, inputs=input_paths)
    plan, inputs = source.planned()
    source.valid.note_deprecated()
    host_ref = resolve_host_ref(plan.runtime, home, host)
    tables = partial(builtin_tables, plan, home, host_ref)
    if MOE_TABLE not in input_paths and make_table(plan, home, tables, allow_untuned=allow_untuned):
        plan, inputs = source.planned()
    if MOE_TABLE in inputs and needs_table(plan):
        check_table(plan, inputs[MOE_TABLE], home, allow_untuned=allow_untuned)
    return plan, inputs


def builtin_tables(plan: Plan, home: Home, host_ref: HostRef) -> RowSources:
    """Return the tables that the plan's engine ships with, read on the server's host."""
    return RowSources(tables=tuple(runtime_class(plan.runtime).builtin_tables(plan, home)), remote=host_ref.remote)


def base_overrides(reference: str) -> tuple[str, ...]:
    """Return the overrides for another base image, `name:tag` or `name:tag@sha256:…`."""
    name, _, digest = reference.partition("@")
    return (f"engine.image={name}", f"engine.image_digest={digest or 'null'}")


def prepare_engine(artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:
    """Build the image or environment of the server; running servers are not affected. Raises BuildError."""
    return runtime_class(artifacts.plan.runtime).prepare(artifacts, host_ref)


def prepare_overlay(prepared: PreparedRun, host_ref: HostRef) -> None:
    """Write the checkpoint's overlay with the config transforms that the engine's sources need. Raises CheckpointError.

    The plan knows only the engine's version, but a dated image may contain newer sources. For a remote host, write only
    the config, from the local copy of the headers; the start copies it to the host.
    """
    plan = prepared.artifacts.plan
    if (overlay := overlay_path(plan, prepared.detected_patches or NO_DETECTED_PATCHES)) is None:
        return
    ids = {patch.id for patch in plan.patches} - prepared.not_needed
    applied = [patch.apply for patch in read_ledger() if patch.id in ids]
    transforms = [apply.transform for apply in applied if isinstance(apply, ConfigTransform)]
    for node in host_ref.nodes:
        written = (node.home.for_remote(node.remote) / RelativePath(overlay)).parent
        directory = mirror_path(plan.model, node) or checkpoint_directory(plan.model, node.home)
        note(f"config overlay: {write_overlay(directory, written, transforms, linked=node.remote is None)}")
