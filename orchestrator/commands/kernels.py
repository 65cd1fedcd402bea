"""The workflows of `deploy kernels`: coverage, the table a server gets, and the tuner for what is missing."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.commands.artifacts import plan_given
from orchestrator.commands.planning import load
from orchestrator.core.console import warn
from orchestrator.core.errors import DeployError, HostError, KernelsError, UsageError
from orchestrator.core.paths import Home
from orchestrator.images import ensure_base, find_docker
from orchestrator.kernels.coverage import Coverage, applies_to, coverage, rank_shapes
from orchestrator.kernels.disk.checkpoint import read_checkpoint
from orchestrator.kernels.disk.files import read_tables
from orchestrator.kernels.disk.image import ImageTables, read_digest, read_image
from orchestrator.kernels.disk.pins import read_pins
from orchestrator.kernels.disk.store import Provenance, Store
from orchestrator.kernels.disk.tuner import Job, Tuned, in_container, tune, tuner_command
from orchestrator.kernels.disk.upstream import upstream_table
from orchestrator.kernels.disk.watch import Limits
from orchestrator.kernels.fusion import Checkpoint
from orchestrator.kernels.keys import Key
from orchestrator.kernels.rows import Row, RowOrigin
from orchestrator.kernels.table import Table, assemble
from orchestrator.plan import Plan
from orchestrator.render.dockerfile import base_reference
from orchestrator.weights.verify import checkpoint_directory

_GPU_DEVICE = Path("/dev/kfd")
_IMAGE_INPUT = "moe-table"  # as patches/aiter-fp4-moe-table asks for it


def planned(
    profile: str, overrides: Sequence[str], home: Home, *, given: Mapping[str, Path] | None = None
) -> tuple[Plan, dict[str, bytes]]:
    """A profile's plan and what its image is given, by input name: what `build` and `up` agree on.

    That is what the user gives, and the table that `deploy kernels table` built for the profile, where it did and the
    user gives none.
    """
    plan = load(profile, overrides=overrides).plan
    table = Store.of(home, plan).table(plan)
    built = {_IMAGE_INPUT: table} if applies_to(plan) and table.is_file() else {}
    return plan_given(profile, overrides, {**built, **(given or {})})


@dataclass(frozen=True, kw_only=True)
class Given:
    """Where rows are read from: tables named by the user, an image, a checkpoint's folder; each may be absent."""

    tables: tuple[Path, ...] = ()
    image: str | None = None
    model: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Covered:
    """A coverage, and the tables it was computed from, in words."""

    found: Coverage
    tables: str


def cover(plan: Plan, given: Given, home: Home) -> Covered:
    """Coverage of a plan by the tables given, else by the table built for its profile, else by none.

    The key follows from the checkpoint given, else from the one that is staged, else both count.
    """
    checkpoint = _checkpoint(plan, given, home)
    shapes = set(rank_shapes(plan, checkpoint.moe if checkpoint else None))
    built = Store.of(home, plan).table(plan)
    rows: list[Row] = []
    names = []
    if given.image:
        shipped, plan = _in_image(plan, given.image)
        rows += shipped.rows
        names.append(f"{shipped.files} files in `{given.image}`")
    paths = given.tables
    if not paths and not given.image and built.is_file():
        paths = (built,)
    rows += read_tables(paths, keep=lambda row: row.key.shape in shapes)
    names += [f"`{path}`" for path in paths]
    pinned = read_pins().names_of(plan.engine.aiter_commit)
    return Covered(
        found=coverage(plan, rows, checkpoint=checkpoint, names=pinned), tables=", ".join(names) or "no table"
    )


def _checkpoint(plan: Plan, given: Given, home: Home) -> Checkpoint | None:
    """The checkpoint named, else the one that is staged for the plan, else none."""
    folder = given.model or checkpoint_directory(plan.model, home)
    return read_checkpoint(folder) if given.model or (folder / "config.json").is_file() else None


def _in_image(plan: Plan, image: str) -> tuple[ImageTables, Plan]:
    """The image's tables, and the plan with the aiter that is really in there."""
    if plan.engine.aiter_dir is None:
        raise KernelsError(
            f"the engine of `{plan.profile}` has no aiter", where=f"engine {plan.engine.name}: aiter_dir"
        )
    shipped = read_image(image, plan.engine.aiter_dir)
    commit = shipped.aiter_commit or plan.engine.aiter_commit
    if commit != plan.engine.aiter_commit:
        warn(
            f"`{image}` holds aiter {commit}, the engine of `{plan.profile}` pins {plan.engine.aiter_commit}",
            hint=f"`--set engine.aiter_commit={commit}` with this image, also for `deploy up`",
        )
    return shipped, replace(plan, engine=replace(plan.engine, aiter_commit=commit))


@dataclass(frozen=True, kw_only=True)
class Built:
    """A table that was written, and what it answers."""

    path: Path
    table: Table
    found: Coverage


def build_table(plan: Plan, given: Given, home: Home, *, upstream: bool) -> Built:
    """Write the one table that the plan's server gets, with its companion of origins.

    Rows come from the image, by default the profile's (pulled where it is missing), or else from copies of its tables;
    from the store of measured rows; and, where `upstream`, from the pinned upstream table. The server will read no
    other file, so a table without the image's rows is not built. Raises KernelsError for a plan that asks for no such
    table, BuildError for an image that cannot be pulled.
    """
    require_moe(plan)
    asked = plan
    own = [replace(row, origin=RowOrigin.IMAGE) for row in read_tables(given.tables)]
    if image := given.image or (None if given.tables else _own_image(plan)):
        shipped, plan = _in_image(plan, image)
        own += shipped.rows
    pins = read_pins()
    rows = [*Store.of(home, plan).measured(), *own]
    if upstream:
        path = upstream_table(pins.upstream, home.kernels / "upstream")
        place = f"aiter {pins.upstream.commit[:12]} {Path(pins.upstream.path).name}"
        found = read_tables([path], origin=RowOrigin.UPSTREAM)
        rows += [replace(row, where=f"{place}:{row.where.rpartition(':')[2]}") for row in found]
    names = pins.names_of(plan.engine.aiter_commit)
    table = assemble(plan, rows, names=names)
    checkpoint = _checkpoint(plan, given, home)
    written = Store.of(home, asked).write(asked, table.rows)  # where `build` and `up` look for it
    return Built(path=written, table=table, found=coverage(plan, table.rows, checkpoint=checkpoint, names=names))


def _own_image(plan: Plan) -> str:
    """The image the plan's own is built on, pulled where it is missing."""
    try:
        ensure_base(find_docker(), plan.engine)
    except DeployError as error:
        error.hint = f"{error.hint}; or give copies of its tables with `--table`"
        raise
    return base_reference(plan.engine)


def require_moe(plan: Plan) -> None:
    """Raise KernelsError for a plan whose server asks aiter for no MXFP4 experts."""
    if not applies_to(plan):
        raise KernelsError(
            f"the server of `{plan.profile}` asks aiter for no MXFP4 experts",
            hint="`deploy kernels coverage` without `--profile` shows the profiles that do",
        )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A tuning that is about to start: with which command, in which image, and where its rows are kept."""

    store: Store
    job: Job
    container: str
    image: str
    aiter_commit: str


def prepare_tuning(plan: Plan, given: Given, home: Home, *, hours: float, rekeyed: bool) -> Tuning:
    """The tuning of exactly the keys that no row answers, and with `rekeyed` also those that a re-keyed row does.

    Raises UsageError without an image to run in.
    """
    require_moe(plan)
    image = given.image or plan.engine.image
    if image is None or plan.engine.aiter_dir is None:
        raise UsageError(f"the engine of `{plan.profile}` has no image with aiter", hint="name one with `--image`")
    if given.image:
        _, plan = _in_image(plan, given.image)
    store = Store.of(home, plan)
    folder = store.tuning(plan)
    container = f"deploy-tune-{plan.profile}-{os.getpid()}"
    job = Job(
        argv=tuner_command(plan, image=image, folder=folder, container=container),
        keys=_to_tune(plan, given, home, rekeyed=rekeyed),
        names=read_pins().names_of(plan.engine.aiter_commit),
        folder=folder,
        limits=Limits(total=hours * 3600, shutdown=120, look=5, term=20),
    )
    return Tuning(
        store=store, job=job, container=container, image=image, aiter_commit=plan.engine.aiter_commit or "unknown"
    )


def _to_tune(plan: Plan, given: Given, home: Home, *, rekeyed: bool) -> tuple[Key, ...]:
    store = Store.of(home, plan)
    if given.tables or store.table(plan).is_file():  # the table holds the image's rows
        given = replace(given, image=None)
    found = cover(plan, given, home).found
    unmeasured = {
        bucket.key
        for one in found.keys
        if one.expected is not False
        for bucket in one.buckets
        if rekeyed and bucket.row and bucket.row.origin is RowOrigin.REKEYED
    }
    measured = {row.key for row in store.measured() if not row.tag}
    return tuple(sorted(({*found.missing, *unmeasured}) - measured))


def run_tuning(tuning: Tuning, progress: Callable[[int, int], None]) -> Tuned:
    """Run it. Raises HostError on a machine without an AMD GPU."""
    if not _GPU_DEVICE.exists():
        raise HostError(
            f"there is no `{_GPU_DEVICE}` here: aiter's tuner measures on the GPU the table is for",
            hint="run this on the server's own host; `--dry-run` shows the command and the keys anywhere",
        )
    provenance = Provenance(
        host=socket.gethostname(),
        image=read_digest(tuning.image),
        aiter_commit=tuning.aiter_commit,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return tune(
        tuning.job, run=in_container(tuning.container), store=tuning.store, provenance=provenance, progress=progress
    )
