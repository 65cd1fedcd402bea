"""Tuned kernels of a plan: are they covered, the table its server gets, and whether its log says they were used."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.commands.runs import RunDir
from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError, KernelsError
from orchestrator.core.files import write_whole
from orchestrator.core.paths import Home
from orchestrator.images import ensure_base, find_docker
from orchestrator.kernels import (
    Coverage,
    GateReport,
    MoeCheckpoint,
    RowOrigin,
    Table,
    TritonReport,
    TunedRow,
    applies_to,
    asks_triton,
    assemble,
    coverage_of,
    gate_report,
    rank_shapes,
    triton_report,
)
from orchestrator.kernels.disk import (
    ImageTables,
    Store,
    read_checkpoint,
    read_image,
    read_pins,
    read_tables,
    upstream_table,
)
from orchestrator.plan import Plan
from orchestrator.render import base_reference
from orchestrator.weights import checkpoint_directory


@dataclass(frozen=True, kw_only=True)
class RowSources:
    """Where rows are read from: tables named by the user, an image, a checkpoint's folder; each may be absent."""

    tables: tuple[Path, ...] = ()
    image: str | None = None
    model: Path | None = None


@dataclass(frozen=True, kw_only=True)
class CoveredPlan:
    """A coverage, and the tables it was computed from, in words."""

    found: Coverage
    tables: str


def cover(plan: Plan, given: RowSources, home: Home) -> CoveredPlan:
    """Coverage of a plan by the tables given, else by the table built for its profile, else by none.

    The key follows from the checkpoint given, else from the one that is staged, else both count.
    """
    checkpoint = _checkpoint(plan, given, home)
    shapes = set(rank_shapes(plan, checkpoint.moe if checkpoint else None))
    built = Store.of(home, plan).table(plan)
    rows: list[TunedRow] = []
    names = []
    if given.image:
        shipped, plan = plan_in_image(plan, given.image)
        rows += shipped.rows
        names.append(f"{shipped.files} files in `{given.image}`")
    paths = given.tables
    if not paths and not given.image and built.is_file():
        paths = (built,)
    rows += read_tables(paths, keep=lambda row: row.key.shape in shapes)
    names += [f"`{path}`" for path in paths]
    pinned = read_pins().names_of(plan.engine.aiter_commit)
    return CoveredPlan(
        found=coverage_of(plan, rows, checkpoint=checkpoint, names=pinned), tables=", ".join(names) or "no table"
    )


def _checkpoint(plan: Plan, given: RowSources, home: Home) -> MoeCheckpoint | None:
    """The checkpoint named, else the one that is staged for the plan, else none."""
    folder = given.model or checkpoint_directory(plan.model, home)
    return read_checkpoint(folder) if given.model or (folder / "config.json").is_file() else None


def plan_in_image(plan: Plan, image: str) -> tuple[ImageTables, Plan]:
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
class BuiltTable:
    """A table that was written, and what it answers."""

    path: Path
    table: Table
    found: Coverage

    @property
    def summary(self) -> str:
        """What it holds, and which keys it answers, in lines."""
        return "\n".join([self.table.summary, *(f"{one.title} ({one.summary})" for one in self.found.keys)])


def build_table(plan: Plan, given: RowSources, home: Home, *, upstream: bool) -> BuiltTable:
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
        shipped, plan = plan_in_image(plan, image)
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
    return BuiltTable(
        path=written, table=table, found=coverage_of(plan, table.rows, checkpoint=checkpoint, names=names)
    )


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


def kernel_report(log: Iterable[str], plan: Plan) -> GateReport | TritonReport | None:
    """What the log says of tuned kernels, aiter's or Triton's; None for a plan that looks none up."""
    if applies_to(plan):
        return gate_report(log)
    return triton_report(log) if asks_triton(plan) else None


def kernel_gate(log: Iterable[str], *, plan: Plan, run: RunDir, strict: bool) -> None:
    """Read the log for hits and misses and say what was missed; nothing for a plan without such kernels.

    Keeps the report beside the log, and aiter's missed keys as its tuner's input. Raises KernelsError on a miss where
    `strict`. Large prefill buckets are looked up late: `smoke` and `bench` look again.
    """
    report = kernel_report(log, plan)
    if report is None:
        return
    run.save("kernels.json", report.to_dict())
    text = f"kernels: {report.summary}"
    if not report.misses:
        note(text)
        return
    hint = report.hint if isinstance(report, TritonReport) else _untuned(report, plan, run)
    if strict:
        raise KernelsError(text, hint=hint)
    warn(text, hint=hint)


def _untuned(report: GateReport, plan: Plan, run: RunDir) -> str:
    """What to do about missed keys, which are written down for the tuner."""
    untuned = write_whole(run.path / "untuned.csv", report.untuned)
    return (
        f"`deploy kernels coverage --profile {plan.profile}` shows the gap, `deploy kernels table` fills what is "
        f"known, `deploy kernels tune` measures the rest; the missed keys: {untuned}"
    )
